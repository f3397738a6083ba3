if __name__ != "headrace.schemas":  # a second copy of every module would be loaded
    raise ImportError("import headrace.schemas, not schemas: the top-level folder is only where the package lives")
