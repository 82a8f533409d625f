"""Reading records: lists, comparisons and curves. Never imports torch."""
