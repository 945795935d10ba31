-- Ends the lives of relays whose buckets are taken, though they be over: now, route, relays in hexadecimal digits (JSON). A row that is changed here can't
-- be renewed at the same time on another node of a cluster.
update outbox_relay
set expires_at = least(expires_at, ?) - 1
where route = ? and relay in (select unhex(j.relay) from json_table(?, '$[*]' columns (relay char(32) path '$')) j)
