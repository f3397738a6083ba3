if __name__ != "headrace.models":  # a second copy of every module would be loaded
    raise ImportError("import headrace.models, not models: the top-level folder is only where the package lives")
