# The search of DCS (section 4.1), for 8 GPUs with 64 images each: as that of KCR, which follows it,
# with nothing but CE and the price.
_base_ = './kcr_search_bs512_200e.py'

custom_hooks = [dict(type='mmkcr.TemperatureDecayHook', initial=4.5, decay=0.95)]
