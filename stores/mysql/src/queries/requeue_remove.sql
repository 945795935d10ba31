-- Removes rows that were appended: entries (JSON).
delete h
from json_table(?, '$[*]' columns (entry bigint path '$')) j
straight_join outbox_dead h on h.entry = j.entry
