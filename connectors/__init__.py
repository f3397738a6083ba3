if __name__ != "headrace.connectors":  # a second copy of every module would be loaded
    raise ImportError("import headrace.connectors, not connectors: the top-level folder only holds the package")
