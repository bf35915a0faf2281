"""Questions about images: FLAVA (``flava``), and the data that it reads (``questions``)."""
