"""Operations on a whole crawl: backup, restore, replay, diagnosis."""
