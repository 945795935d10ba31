-- Which messages wait on a route, hot or parked, each where it was read, by their numbers in the
-- lists: ?1 positions (JSON), ?2 their ids, 16 bytes each, in the same order, ?3 the route.
select j.key
from json_each(?1) j
cross join outbox_message m on m.position = j.value
where m.id = substr(?2, j.key * 16 + 1, 16) and m.route = ?3
union all
select j.key
from json_each(?1) j
cross join outbox_parked p on p.position = j.value
where p.id = substr(?2, j.key * 16 + 1, 16) and p.route = ?3
