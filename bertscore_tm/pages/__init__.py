"""HTML pages: templates, styles and scripts. Data in, one file out; knows no alignment and no report."""
