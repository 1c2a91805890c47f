"""Operations on a running pipeline: apply, verify, repair, replay, rewind, rebuild, maintain, clean, remove."""
