"""Between text and token ids: tokenizers, chat templates, incremental detokenisation, stops."""
