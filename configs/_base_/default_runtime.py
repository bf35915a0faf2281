# The same for configs without a method base: this package is imported.
_base_ = './compressed_runtime.py'

custom_imports = dict(imports=['mmkcr'], allow_failed_imports=False)
