"""Programs that measure: layers by their agreement with human judgements."""
