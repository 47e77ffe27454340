"""URLs: the canonical form, many at once, rules and what traps look like."""
