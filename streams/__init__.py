if __name__ != "headrace.streams":  # a second copy of every module would be loaded
    raise ImportError("import headrace.streams, not streams: the top-level folder is only where the package lives")
