# The search of DCS on the digits, on one CPU: as that of KCR, with nothing but CE and the price.
_base_ = './kcr_digits-search_bs64_16e.py'

custom_hooks = [
    # 4.5 x 0.79^15 = 0.13 at the end
    dict(type='mmkcr.TemperatureDecayHook', initial=4.5, decay=0.79),
]
