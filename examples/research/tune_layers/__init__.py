"""Which layer of a model agrees best with human judgements."""
