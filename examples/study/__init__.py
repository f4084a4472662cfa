"""Does the loss help? A training study of the BERTScore loss against cross-entropy on two summarization tasks."""
