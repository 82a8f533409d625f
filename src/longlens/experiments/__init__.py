"""Many runs: tables of cells, a queue that workers share, searches over options."""
