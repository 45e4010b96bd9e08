"""What a check found, for people and for machines: text, JSON, SARIF and one page of HTML.

`_review` decides what counts (each pair of places once, suppressions, the baseline); the other modules only render a
`Review`. Nothing here prints or knows a framework.
"""
