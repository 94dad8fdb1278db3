"""What runs on the cluster: the patched PipelineModule. Imports nothing of the rest of tiespec but its errors."""
