"""The links of HTML pages, for all that read pages; in a process of its own where the pages are strangers'."""
