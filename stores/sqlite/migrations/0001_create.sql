-- The tables of an outbox, version 1. Plain SQL for SQLite 3.8.2 or later: any migration tool can
-- run it, once. It records itself in outbox_schema, so that `migrate` knows the present version.
--
-- Times are microseconds since 1970 (UTC), by the database's clock, which is read with julianday: every SQLite has it. Identifiers are the
-- 16 bytes of a UUID. Headers are a JSON object of strings; no bytes at all where there are none.

create table outbox_schema (
    version    integer primary key,
    name       text not null,
    applied_at integer not null default (cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000)
);

-- Messages that are not published yet: rows are appended and deleted, never changed. An existing
-- row has not been confirmed.
--
-- Any program may insert here, in its own transaction. It gives topic, event_type and payload, and
-- key if order matters; the rest has defaults. It leaves out position (it comes from AUTOINCREMENT,
-- so that none ever comes back) and, unless it computes the first byte of SHA-256 over topic, NUL
-- and key, also bucket: a relay fills it in before it reads any further.
--
-- The checks refuse invalid messages; each one's name gives the column and the rule. The pattern is
-- `*[U+0001-U+001F U+007F-U+009F]*`, in bytes, so that this file contains no control character. No
-- check verifies that headers hold only strings: an older SQLite has no JSON.
create table outbox_message (
    position       integer primary key autoincrement
                   constraint position_is_given_by_the_database check (position > 0),
    id             blob not null default (randomblob(16))
                   constraint id_is_a_uuid_of_16_bytes check (typeof(id) = 'blob' and length(id) = 16),
    route          text not null default 'default'
                   constraint route_is_text_of_1_to_64_bytes
                   check (typeof(route) = 'text' and length(cast(route as blob)) between 1 and 64)
                   constraint route_has_no_control_characters
                   check (route not glob cast(x'2a5b012d1f7f2dc29f5d2a' as text) and instr(route, cast(x'00' as text)) = 0),
    bucket         integer
                   constraint bucket_is_null_or_0_to_255
                   check (bucket is null or (typeof(bucket) = 'integer' and bucket between 0 and 255)),
    topic          text not null
                   constraint topic_is_text_of_1_to_249_bytes
                   check (typeof(topic) = 'text' and length(cast(topic as blob)) between 1 and 249)
                   constraint topic_has_no_control_characters
                   check (topic not glob cast(x'2a5b012d1f7f2dc29f5d2a' as text) and instr(topic, cast(x'00' as text)) = 0),
    key            text
                   constraint key_is_null_or_text_of_1_to_255_bytes
                   check (key is null or (typeof(key) = 'text' and length(cast(key as blob)) between 1 and 255))
                   constraint key_has_no_control_characters
                   check (key is null or (key not glob cast(x'2a5b012d1f7f2dc29f5d2a' as text) and instr(key, cast(x'00' as text)) = 0)),
    event_type     text not null
                   constraint event_type_is_text_of_1_to_255_bytes
                   check (typeof(event_type) = 'text' and length(cast(event_type as blob)) between 1 and 255)
                   constraint event_type_has_no_control_characters
                   check (event_type not glob cast(x'2a5b012d1f7f2dc29f5d2a' as text) and instr(event_type, cast(x'00' as text)) = 0),
    schema_version integer not null default 1
                   constraint schema_version_counts_from_1
                   check (typeof(schema_version) = 'integer' and schema_version between 1 and 4294967295),
    content_type   text not null default 'application/json'
                   constraint content_type_is_text_of_1_to_255_bytes
                   check (typeof(content_type) = 'text' and length(cast(content_type as blob)) between 1 and 255)
                   constraint content_type_has_no_control_characters
                   check (content_type not glob cast(x'2a5b012d1f7f2dc29f5d2a' as text) and instr(content_type, cast(x'00' as text)) = 0),
    headers        blob not null default (x'')
                   constraint headers_are_bytes_or_text check (typeof(headers) in ('blob', 'text'))
                   constraint headers_are_a_json_object
                   check (length(headers) = 0 or trim(cast(headers as text), cast(x'20090a0d' as text)) glob '{*}'),
    payload        blob not null default (x'')
                   constraint payload_is_text_or_a_blob_of_at_most_15_mib
                   check (typeof(payload) in ('blob', 'text') and length(cast(payload as blob)) <= 15728640),
    occurred_at    integer not null default (cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000)
                   constraint occurred_at_is_in_microseconds
                   check (typeof(occurred_at) = 'integer' and occurred_at between -62167219200000000 and 253402300799999999),
    appended_at    integer not null default (cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000)
                   constraint appended_at_is_in_microseconds check (typeof(appended_at) = 'integer')
);

-- Rows of programs that leave the bucket out. No relay reads past the first of them; empty again at once.
create index outbox_message_unplaced on outbox_message (position) where bucket is null;

-- Messages that wait for a consumer's handler, by key: only rows of routes that start with inbox/ are in it.
create index outbox_message_inbox on outbox_message (route, topic, key) where route >= 'inbox/' and route < 'inbox0';

-- The same rows by their order key: the key, or for a message without one its identifier,
-- hyphenated.
create view outbox_pending as
select position, id, route, bucket, topic, key,
       coalesce(key, lower(substr(hex(id), 1, 8) || '-' || substr(hex(id), 9, 4) || '-' || substr(hex(id), 13, 4) || '-' ||
                           substr(hex(id), 17, 4) || '-' || substr(hex(id), 21))) as order_key,
       event_type, schema_version, content_type, headers, payload, occurred_at, appended_at
from outbox_message;

-- Failing and held keys. Nearly always empty.
create table outbox_key (
    route           text not null,
    topic           text not null,
    key             text not null,
    bucket          integer not null,
    version         integer not null,
    held            integer not null default 0,
    next_attempt_at integer,
    failing         blob,
    attempts        integer not null default 0,
    first_failure   text,
    last_failure    text,
    since           integer not null,
    primary key (route, topic, key)
) without rowid;

create index outbox_key_due on outbox_key (route, next_attempt_at) where held = 0;
create index outbox_key_held on outbox_key (route) where held = 1;
-- For the list of them, the longest failing first.
create index outbox_key_since on outbox_key (since, route, topic, key);

-- Counts the states of keys, so that a state of a key that was closed and opened again does not
-- match an older one.
create table outbox_counter (
    name  text primary key,
    value integer not null
) without rowid;

insert into outbox_counter (name, value) values ('key_version', 0);

-- Messages behind a failing key, with the positions that they had. Where positions came back, two
-- messages may have had the same.
create table outbox_parked (
    position       integer not null,
    id             blob not null,
    route          text not null,
    bucket         integer not null,
    topic          text not null,
    key            text,
    order_key      text not null,
    event_type     text not null,
    schema_version integer not null,
    content_type   text not null,
    headers        blob not null,
    payload        blob not null,
    occurred_at    integer not null,
    appended_at    integer not null,
    parked_at      integer not null,
    primary key (position, id)
);

create index outbox_parked_key on outbox_parked (route, topic, order_key, position);
create index outbox_parked_route on outbox_parked (route, position);

-- Dead letters, in the order in which they died.
create table outbox_dead (
    number         integer primary key autoincrement,
    position       integer not null,
    id             blob not null,
    route          text not null,
    bucket         integer,
    topic          text not null,
    key            text,
    order_key      text not null,
    event_type     text not null,
    schema_version integer not null,
    content_type   text not null,
    headers        blob not null,
    payload        blob not null,
    occurred_at    integer not null,
    appended_at    integer not null,
    reason         text not null,
    attempts       integer not null,
    first_failure  text,
    last_failure   text,
    died_at        integer not null
);

create index outbox_dead_route on outbox_dead (route, topic);

-- Delivered messages, where a history is kept.
create table outbox_history (
    number         integer primary key autoincrement,
    position       integer not null,
    id             blob not null,
    route          text not null,
    bucket         integer,
    topic          text not null,
    key            text,
    order_key      text not null,
    event_type     text not null,
    schema_version integer not null,
    content_type   text not null,
    headers        blob not null,
    payload        blob not null,
    occurred_at    integer not null,
    appended_at    integer not null,
    delivered_at   integer not null
);

-- Messages that join their keys later, under the same checks: one that could not join would delay
-- all others.
create table outbox_scheduled (
    number         integer primary key autoincrement,
    due_at         integer not null
                   constraint due_at_is_in_microseconds check (typeof(due_at) = 'integer'),
    id             blob not null default (randomblob(16))
                   constraint id_is_a_uuid_of_16_bytes check (typeof(id) = 'blob' and length(id) = 16),
    route          text not null default 'default'
                   constraint route_is_text_of_1_to_64_bytes
                   check (typeof(route) = 'text' and length(cast(route as blob)) between 1 and 64)
                   constraint route_has_no_control_characters
                   check (route not glob cast(x'2a5b012d1f7f2dc29f5d2a' as text) and instr(route, cast(x'00' as text)) = 0),
    bucket         integer
                   constraint bucket_is_null_or_0_to_255
                   check (bucket is null or (typeof(bucket) = 'integer' and bucket between 0 and 255)),
    topic          text not null
                   constraint topic_is_text_of_1_to_249_bytes
                   check (typeof(topic) = 'text' and length(cast(topic as blob)) between 1 and 249)
                   constraint topic_has_no_control_characters
                   check (topic not glob cast(x'2a5b012d1f7f2dc29f5d2a' as text) and instr(topic, cast(x'00' as text)) = 0),
    key            text
                   constraint key_is_null_or_text_of_1_to_255_bytes
                   check (key is null or (typeof(key) = 'text' and length(cast(key as blob)) between 1 and 255))
                   constraint key_has_no_control_characters
                   check (key is null or (key not glob cast(x'2a5b012d1f7f2dc29f5d2a' as text) and instr(key, cast(x'00' as text)) = 0)),
    event_type     text not null
                   constraint event_type_is_text_of_1_to_255_bytes
                   check (typeof(event_type) = 'text' and length(cast(event_type as blob)) between 1 and 255)
                   constraint event_type_has_no_control_characters
                   check (event_type not glob cast(x'2a5b012d1f7f2dc29f5d2a' as text) and instr(event_type, cast(x'00' as text)) = 0),
    schema_version integer not null default 1
                   constraint schema_version_counts_from_1
                   check (typeof(schema_version) = 'integer' and schema_version between 1 and 4294967295),
    content_type   text not null default 'application/json'
                   constraint content_type_is_text_of_1_to_255_bytes
                   check (typeof(content_type) = 'text' and length(cast(content_type as blob)) between 1 and 255)
                   constraint content_type_has_no_control_characters
                   check (content_type not glob cast(x'2a5b012d1f7f2dc29f5d2a' as text) and instr(content_type, cast(x'00' as text)) = 0),
    headers        blob not null default (x'')
                   constraint headers_are_bytes_or_text check (typeof(headers) in ('blob', 'text'))
                   constraint headers_are_a_json_object
                   check (length(headers) = 0 or trim(cast(headers as text), cast(x'20090a0d' as text)) glob '{*}'),
    payload        blob not null default (x'')
                   constraint payload_is_text_or_a_blob_of_at_most_15_mib
                   check (typeof(payload) in ('blob', 'text') and length(cast(payload as blob)) <= 15728640),
    occurred_at    integer not null default (cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000)
                   constraint occurred_at_is_in_microseconds
                   check (typeof(occurred_at) = 'integer' and occurred_at between -62167219200000000 and 253402300799999999),
    appended_at    integer not null default (cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000)
);

create index outbox_scheduled_due on outbox_scheduled (due_at, number, route);

-- Owners of the buckets of a route: in force while the relay lives, and for a bucket that is being
-- given up no longer than expires_at.
create table outbox_lease (
    route      text not null,
    bucket     integer not null,
    relay      blob,
    epoch      integer not null default 0,
    since      integer not null default 0,
    low_water  integer not null default 0,
    expires_at integer,
    primary key (route, bucket)
) without rowid;

-- Relays, alive while expires_at is ahead, and not implausibly far.
create table outbox_relay (
    route             text not null,
    relay             blob not null,
    label             text not null,
    expires_at        integer not null,
    lasts             integer not null,
    unavailable_since integer,
    fingerprint       integer not null,
    primary key (route, relay)
) without rowid;

-- Elected relays, for work that only one relay should do.
create table outbox_role (
    role       text primary key,
    relay      blob not null,
    expires_at integer not null,
    lasts      integer not null
) without rowid;

-- Pauses of operators. An empty topic means the whole route.
create table outbox_pause (
    route text not null,
    topic text not null,
    primary key (route, topic)
) without rowid;

-- Identity of the outbox: the source of its messages. One row.
create table outbox_identity (
    one integer primary key check (one = 1),
    id  blob not null check (typeof(id) = 'blob' and length(id) = 16)
);

-- Record of admin operations: who did what, to which messages. Ids are hyphenated, with a space between two.
create table outbox_audit (
    number    integer primary key autoincrement,
    at        integer not null,
    actor     text not null,
    operation text not null,
    route     text,
    topic     text,
    key       text,
    detail    text not null,
    affected  integer not null,
    ids       text not null
);

create index outbox_audit_at on outbox_audit (at);

-- Messages that consumers have handled. Numbers grow with time: expired rows are at the front.
create table outbox_handled (
    number      integer primary key,
    consumer    text not null,
    id          blob not null,
    handled_at  integer not null,
    topic       text not null,
    key         text,
    unique (consumer, id)
);

create index outbox_handled_at on outbox_handled (consumer, handled_at);

-- Retentions of handled ids that processes were opened with, and when one last said so. Whichever
-- process removes ids does so by the longest.
create table outbox_retention (
    handled_ids_kept    integer not null,
    handled_ids_max_age integer not null,
    renewed_at          integer not null,
    primary key (handled_ids_kept, handled_ids_max_age)
) without rowid;

insert into outbox_schema (version, name) values (1, 'create');
