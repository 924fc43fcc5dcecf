"""Pages, charts and figures of any run or comparison."""
