-- The tables of an outbox, version 1. Plain SQL for MySQL 8.0.16 or later and MariaDB 10.6 or later: any migration tool can run it, once. It
-- records itself in outbox_schema, so that `migrate` knows what is there.
--
-- Times are microseconds since 1970 (UTC), by the database's clock. Identifiers are the 16 bytes of a UUID. Texts are bytes of UTF-8, so that
-- no collation takes two keys for one (`a`, `A` and `a ` are three) and the character set of a session changes nothing. Headers are a JSON
-- object of strings; no bytes at all where there are none.

create table if not exists outbox_schema (
    version    bigint not null primary key,
    name       varbinary(64) not null,
    applied_at bigint not null default (timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6)))
) engine = InnoDB;

-- What is still to be published: rows are appended and deleted, never changed. A row that exists has not been confirmed.
--
-- `stripe` is the first ten bits of SHA-256 over topic, NUL and key (for a message without a key: its id, hyphenated, in lower case).
-- The checks refuse what could never be a message, and their names say what is wrong. A text is UTF-8 of which JSON would escape nothing but quotes and
-- backslashes, and without U+007F: so said it costs nothing that could be measured, where a regular expression would be compiled for each statement.
--
-- `position` and `number` are taken from the stripe's row in outbox_stripe, under its lock, in the transaction that writes the message: see the
-- page of the book on MySQL for the two statements with which any program appends.
create table if not exists outbox_message (
    route          varbinary(64) not null default 'default',
    position       bigint not null,
    stripe         smallint not null,
    number         bigint not null,
    id             binary(16) not null,
    topic          varbinary(249) not null,
    `key`          varbinary(255),
    order_key      varbinary(255) as (coalesce(`key`, lower(concat(
                       hex(substr(id, 1, 4)), '-', hex(substr(id, 5, 2)), '-', hex(substr(id, 7, 2)), '-',
                       hex(substr(id, 9, 2)), '-', hex(substr(id, 11, 6)))))) virtual,
    event_type     varbinary(255) not null,
    schema_version bigint not null default 1,
    content_type   varbinary(255) not null default 'application/json',
    headers        mediumblob not null default (''),
    payload        longblob not null default (''),
    occurred_at    bigint not null default (timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6))),
    appended_at    bigint not null default (timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6))),
    primary key (route, position),
    constraint outbox_message_position check (position > 0),
    constraint outbox_message_stripe check (stripe between 0 and 1023),
    constraint outbox_message_route_is_empty_or_has_control_characters check (((
        length(route) > 0 and convert(route using utf8mb4) = route and instr(route, x'7f') = 0
        and length(json_quote(convert(route using utf8mb4))) = 2 + 3 * length(route) - length(replace(route, x'22', '')) - length(replace(route, x'5c', ''))) is true)),
    constraint outbox_message_topic_is_empty_or_has_control_characters check (((
        length(topic) > 0 and convert(topic using utf8mb4) = topic and instr(topic, x'7f') = 0
        and length(json_quote(convert(topic using utf8mb4))) = 2 + 3 * length(topic) - length(replace(topic, x'22', '')) - length(replace(topic, x'5c', ''))) is true)),
    constraint outbox_message_key_is_empty_or_has_control_characters check (`key` is null or ((
        length(`key`) > 0 and convert(`key` using utf8mb4) = `key` and instr(`key`, x'7f') = 0
        and length(json_quote(convert(`key` using utf8mb4))) = 2 + 3 * length(`key`) - length(replace(`key`, x'22', '')) - length(replace(`key`, x'5c', ''))) is true)),
    constraint outbox_message_event_type_is_empty_or_has_control_characters check (((
        length(event_type) > 0 and convert(event_type using utf8mb4) = event_type and instr(event_type, x'7f') = 0
        and length(json_quote(convert(event_type using utf8mb4))) = 2 + 3 * length(event_type) - length(replace(event_type, x'22', '')) - length(replace(event_type, x'5c', ''))) is true)),
    constraint outbox_message_content_type_is_empty_or_has_control_characters check (((
        length(content_type) > 0 and convert(content_type using utf8mb4) = content_type and instr(content_type, x'7f') = 0
        and length(json_quote(convert(content_type using utf8mb4))) = 2 + 3 * length(content_type) - length(replace(content_type, x'22', '')) - length(replace(content_type, x'5c', ''))) is true)),
    constraint outbox_message_schema_version_counts_from_1 check (schema_version between 1 and 4294967295),
    constraint outbox_message_headers_are_no_json_object check (
        length(headers) = 0 or (case when json_valid(convert(headers using utf8mb4)) then json_type(convert(headers using utf8mb4)) = 'OBJECT' else false end) is true),
    constraint outbox_message_payload_is_over_15_mib check (length(payload) <= 15728640),
    constraint outbox_message_occurred_at_is_no_microsecond check (occurred_at between -62167219200000000 and 253402300799999999)
) engine = InnoDB;

-- How far each stripe of a route was committed. A writer adds to its stripe's row before it writes its messages and holds the row's lock until
-- its transaction is over: so the order of numbers, and of positions, is the order of commits. The rows of a route are made before its first
-- message is written, outside of any writer's transaction: where they are there, no writer ever waits for a gap.
create table if not exists outbox_stripe (
    route             varbinary(64) not null,
    stripe            smallint not null,
    number            bigint not null default 0,
    position          bigint not null default 0,
    first_number      bigint not null default 0,
    first_position    bigint not null default 0,
    previous_position bigint not null default 0,
    primary key (route, stripe)
) engine = InnoDB;

insert ignore into outbox_stripe (route, stripe)
with digit as (
    select 0 as n union all select 1 union all select 2 union all select 3 union all select 4 union all select 5 union all select 6 union all select 7
)
select 'default', a.n + 8 * b.n + 64 * c.n + 512 * d.n
from digit a cross join digit b cross join digit c cross join digit d
where d.n < 2;

-- Failing and held keys. Nearly always empty. `steps` counts how often messages were moved behind one that stays as it is: see outbox_lease.
create table if not exists outbox_key (
    route           varbinary(64) not null,
    topic           varbinary(249) not null,
    `key`           varbinary(255) not null,
    bucket          smallint not null,
    version         bigint not null,
    held            tinyint not null default 0,
    next_attempt_at bigint,
    failing         binary(16),
    attempts        bigint not null default 0,
    first_failure   mediumblob,
    last_failure    mediumblob,
    since           bigint not null,
    steps           bigint not null default 0,
    primary key (route, topic, `key`),
    key outbox_key_due (route, held, next_attempt_at),
    -- For the list of them, the longest failing first; each entry ends with the columns of the primary key.
    key outbox_key_since (since)
) engine = InnoDB;

-- Numbers that never come back: of the states of keys.
create table if not exists outbox_counter (
    name  varbinary(64) not null primary key,
    value bigint not null
) engine = InnoDB;

insert ignore into outbox_counter (name, value) values ('key_version', 0), ('promoting', 0);

-- Messages behind a failing key, with the positions and numbers that they had.
create table if not exists outbox_parked (
    route          varbinary(64) not null,
    topic          varbinary(249) not null,
    order_key      varbinary(255) not null,
    position       bigint not null,
    stripe         smallint not null,
    number         bigint not null,
    id             binary(16) not null,
    `key`          varbinary(255),
    event_type     varbinary(255) not null,
    schema_version bigint not null,
    content_type   varbinary(255) not null,
    headers        mediumblob not null,
    payload        longblob not null,
    occurred_at    bigint not null,
    appended_at    bigint not null,
    parked_at      bigint not null,
    primary key (route, topic, order_key, position, id),
    -- For figures: the oldest, and a count that reads no messages.
    key outbox_parked_oldest (route, appended_at)
) engine = InnoDB;

-- Dead letters, in the order in which they died.
create table if not exists outbox_dead (
    entry          bigint not null auto_increment primary key,
    position       bigint not null,
    stripe         smallint not null,
    number         bigint not null,
    id             binary(16) not null,
    route          varbinary(64) not null,
    topic          varbinary(249) not null,
    `key`          varbinary(255),
    order_key      varbinary(255) not null,
    event_type     varbinary(255) not null,
    schema_version bigint not null,
    content_type   varbinary(255) not null,
    headers        mediumblob not null,
    payload        longblob not null,
    occurred_at    bigint not null,
    appended_at    bigint not null,
    reason         varbinary(64) not null,
    attempts       bigint not null,
    first_failure  mediumblob,
    last_failure   mediumblob,
    died_at        bigint not null,
    key outbox_dead_route (route, topic, order_key)
) engine = InnoDB;

-- Delivered messages, where a history is kept: in partitions by the time of delivery, made ahead and dropped whole. What comes when there is
-- none goes to the last one, so that no settlement needs a partition to be made. While partitions are made or dropped settlements stand behind that,
-- and with them behind whoever reads the table in a transaction: so the wait is for a second at most, and then given up until the next turn.
create table if not exists outbox_history (
    entry          bigint not null auto_increment,
    delivered_at   bigint not null,
    position       bigint not null,
    stripe         smallint not null,
    number         bigint not null,
    id             binary(16) not null,
    route          varbinary(64) not null,
    topic          varbinary(249) not null,
    `key`          varbinary(255),
    order_key      varbinary(255) not null,
    event_type     varbinary(255) not null,
    schema_version bigint not null,
    content_type   varbinary(255) not null,
    headers        mediumblob not null,
    payload        longblob not null,
    occurred_at    bigint not null,
    appended_at    bigint not null,
    primary key (entry, delivered_at)
) engine = InnoDB
partition by range (delivered_at) (partition rest values less than maxvalue);

-- Messages that join their keys later, under the same checks: one that could not join would hold up all others. `stripe` is that of the message.
create table if not exists outbox_scheduled (
    entry          bigint not null auto_increment primary key,
    due_at         bigint not null,
    id             binary(16) not null,
    route          varbinary(64) not null default 'default',
    stripe         smallint not null,
    topic          varbinary(249) not null,
    `key`          varbinary(255),
    event_type     varbinary(255) not null,
    schema_version bigint not null default 1,
    content_type   varbinary(255) not null default 'application/json',
    headers        mediumblob not null default (''),
    payload        longblob not null default (''),
    occurred_at    bigint not null default (timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6))),
    appended_at    bigint not null default (timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6))),
    key outbox_scheduled_due (due_at, entry),
    key outbox_scheduled_id (id),
    constraint outbox_scheduled_stripe check (stripe between 0 and 1023),
    constraint outbox_scheduled_route_is_empty_or_has_control_characters check (((
        length(route) > 0 and convert(route using utf8mb4) = route and instr(route, x'7f') = 0
        and length(json_quote(convert(route using utf8mb4))) = 2 + 3 * length(route) - length(replace(route, x'22', '')) - length(replace(route, x'5c', ''))) is true)),
    constraint outbox_scheduled_topic_is_empty_or_has_control_characters check (((
        length(topic) > 0 and convert(topic using utf8mb4) = topic and instr(topic, x'7f') = 0
        and length(json_quote(convert(topic using utf8mb4))) = 2 + 3 * length(topic) - length(replace(topic, x'22', '')) - length(replace(topic, x'5c', ''))) is true)),
    constraint outbox_scheduled_key_is_empty_or_has_control_characters check (`key` is null or ((
        length(`key`) > 0 and convert(`key` using utf8mb4) = `key` and instr(`key`, x'7f') = 0
        and length(json_quote(convert(`key` using utf8mb4))) = 2 + 3 * length(`key`) - length(replace(`key`, x'22', '')) - length(replace(`key`, x'5c', ''))) is true)),
    constraint outbox_scheduled_event_type_is_empty_or_has_control_characters check (((
        length(event_type) > 0 and convert(event_type using utf8mb4) = event_type and instr(event_type, x'7f') = 0
        and length(json_quote(convert(event_type using utf8mb4))) = 2 + 3 * length(event_type) - length(replace(event_type, x'22', '')) - length(replace(event_type, x'5c', ''))) is true)),
    constraint outbox_scheduled_content_type_is_empty_or_has_control_characters check (((
        length(content_type) > 0 and convert(content_type using utf8mb4) = content_type and instr(content_type, x'7f') = 0
        and length(json_quote(convert(content_type using utf8mb4))) = 2 + 3 * length(content_type) - length(replace(content_type, x'22', '')) - length(replace(content_type, x'5c', ''))) is true)),
    constraint outbox_scheduled_schema_version_counts_from_1 check (schema_version between 1 and 4294967295),
    constraint outbox_scheduled_headers_are_no_json_object check (
        length(headers) = 0 or (case when json_valid(convert(headers using utf8mb4)) then json_type(convert(headers using utf8mb4)) = 'OBJECT' else false end) is true),
    constraint outbox_scheduled_payload_is_over_15_mib check (length(payload) <= 15728640),
    constraint outbox_scheduled_occurred_at_is_no_microsecond check (occurred_at between -62167219200000000 and 253402300799999999)
) engine = InnoDB;

-- Who owns a bucket of a route: in force while the relay lives, and for a bucket that is being given up no longer than expires_at. `steps` counts
-- the steps of failing keys that relied on it: a row that was only locked says nothing to other nodes of a cluster, one that was changed does.
create table if not exists outbox_lease (
    route      varbinary(64) not null,
    bucket     smallint not null,
    relay      binary(16),
    epoch      bigint not null default 0,
    since      bigint not null default 0,
    low_water  bigint not null default 0,
    expires_at bigint,
    steps      bigint not null default 0,
    primary key (route, bucket)
) engine = InnoDB;

-- Relays, alive while expires_at is ahead, and not implausibly far. `session`: the connection of its heartbeats, on which server, which holds the lock of
-- its number; null where others can't see it. `session_lost_at`: since when another relay found that lock free.
create table if not exists outbox_relay (
    route             varbinary(64) not null,
    relay             binary(16) not null,
    label             varbinary(1024) not null,
    expires_at        bigint not null,
    lasts             bigint not null,
    unavailable_since bigint,
    fingerprint       bigint not null,
    session           bigint unsigned,
    server            varbinary(512),
    session_lost_at   bigint,
    primary key (route, relay)
) engine = InnoDB;

-- Who does what only one relay should do.
create table if not exists outbox_role (
    role       varbinary(64) not null primary key,
    relay      binary(16) not null,
    expires_at bigint not null,
    lasts      bigint not null
) engine = InnoDB;

-- What operators have paused. An empty topic stands for the whole route.
create table if not exists outbox_pause (
    route varbinary(64) not null,
    topic varbinary(249) not null,
    primary key (route, topic)
) engine = InnoDB;

-- Identity of the outbox: the source of its messages. One row.
create table if not exists outbox_identity (
    one tinyint not null primary key check (one = 1),
    id  binary(16) not null
) engine = InnoDB;

-- Record of admin operations: who did what, to which messages. Ids have a space between two.
create table if not exists outbox_audit (
    entry     bigint not null auto_increment primary key,
    at        bigint not null,
    actor     varbinary(255) not null,
    operation varbinary(64) not null,
    route     varbinary(64),
    topic     varbinary(249),
    `key`     varbinary(255),
    detail    mediumblob not null,
    affected  bigint not null,
    ids       mediumblob not null,
    key outbox_audit_at (at)
) engine = InnoDB;

-- What consumers have handled, and which call noted it.
create table if not exists outbox_handled (
    consumer    varbinary(255) not null,
    id          binary(16) not null,
    handled_at  bigint not null,
    noted_by    binary(16) not null,
    topic       varbinary(255) not null,
    `key`       varbinary(255),
    primary key (consumer, id),
    key outbox_handled_at (consumer, handled_at)
) engine = InnoDB;

-- Retentions of handled ids that processes were opened with, and when one last said so. Whichever
-- process removes ids does so by the longest.
create table if not exists outbox_retention (
    handled_ids_kept    bigint not null,
    handled_ids_max_age bigint not null,
    renewed_at          bigint not null,
    primary key (handled_ids_kept, handled_ids_max_age)
) engine = InnoDB;

insert ignore into outbox_schema (version, name) values (1, 'create');
