-- The tables of an outbox, version 1. Plain SQL for PostgreSQL 13 or later: any migration tool can
-- run it, once, in the schema that is first in the search_path. It records itself in outbox_schema,
-- so that `migrate` knows the present version.
--
-- Times are microseconds since 1970 (UTC), by the database's clock. Headers are the bytes of a JSON object of strings; no bytes at all where
-- there are none. Checks of single values are in the functions of the next migration: PostgreSQL compiles the CHECK constraints of a table for
-- each statement, and nine of them cost more than the rest of an append.

create function outbox_now() returns bigint
    language sql volatile parallel safe
    as $$ select (date_part('epoch', clock_timestamp()) * 1000000)::bigint $$;

create table outbox_schema (
    version    bigint primary key,
    name       text not null,
    applied_at bigint not null default outbox_now()
);

-- Positions. Never cached: two sessions with cached numbers would commit a key's messages out of
-- the order of their positions.
create sequence outbox_message_position as bigint minvalue 1 cache 1 no cycle;

-- Messages that are not published yet: rows are appended and deleted, never changed. An existing
-- row has not been confirmed. The primary key is the only index that every row is in.
--
-- Any program may insert here, in its own transaction: see outbox_append, and the trigger of the next migration for plain INSERT.
-- position has no default on purpose: one would be taken before the trigger can lock the key.
create table outbox_message (
    position       bigint not null,
    occurred_at    bigint not null default (date_part('epoch', clock_timestamp()) * 1000000)::bigint,
    appended_at    bigint not null default (date_part('epoch', clock_timestamp()) * 1000000)::bigint,
    schema_version bigint not null default 1,
    id             uuid not null default gen_random_uuid(),
    bucket         smallint not null,
    route          text not null default 'default',
    topic          text not null,
    key            text,
    event_type     text not null,
    content_type   text not null default 'application/json',
    headers        bytea not null default '',
    payload        bytea not null default '',
    constraint outbox_message_pkey primary key (position)
) with (
    -- Rows live for milliseconds: vacuum by a fixed number of dead ones, at full speed, and never
    -- truncate the file, which would lock out all others for a moment.
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 100000, vacuum_truncate = off,
    toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 50000, toast.autovacuum_vacuum_cost_delay = 0,
    toast.vacuum_truncate = off
);

alter sequence outbox_message_position owned by outbox_message.position;

-- Messages that wait for a consumer's handler, by key: only rows of routes that start with inbox/
-- are in it. Written without a comparison of texts, because some collations ignore punctuation.
create index outbox_message_inbox on outbox_message (route, topic, key, position) where starts_with(route, 'inbox/');

-- Failing and held keys. Nearly always empty.
create table outbox_key (
    route           text not null,
    topic           text not null,
    key             text not null,
    bucket          smallint not null,
    version         bigint not null,
    held            boolean not null default false,
    next_attempt_at bigint,
    failing         uuid,
    attempts        bigint not null default 0,
    first_failure   text,
    last_failure    text,
    since           bigint not null,
    constraint outbox_key_pkey primary key (route, topic, key)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

create index outbox_key_due on outbox_key (route, next_attempt_at nulls first) where not held;
-- For the figures of a route alone. On an expression, so that no plan for a seemingly empty table
-- uses it for a query about a key.
create index outbox_key_held on outbox_key ((route || '')) where held;
-- For the list of them, the longest failing first. On an expression, too: see above.
create index outbox_key_since on outbox_key ((since + 0));

-- Counts the states of keys, so that a state of a key that was closed and opened again does not
-- match an older one.
create sequence outbox_key_version as bigint minvalue 1 cache 1 no cycle;

-- Messages behind a failing key, with the positions that they had.
create table outbox_parked (
    position       bigint not null,
    occurred_at    bigint not null,
    appended_at    bigint not null,
    parked_at      bigint not null,
    schema_version bigint not null,
    id             uuid not null,
    bucket         smallint not null,
    route          text not null,
    topic          text not null,
    key            text,
    order_key      text not null,
    event_type     text not null,
    content_type   text not null,
    headers        bytea not null,
    payload        bytea not null,
    constraint outbox_parked_pkey primary key (position, id)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);

create index outbox_parked_key on outbox_parked (route, topic, order_key, position);
-- Like outbox_key_held: for the age of the parked messages alone.
create index outbox_parked_route on outbox_parked ((route || ''), position);

-- Dead letters, in the order in which they died.
create table outbox_dead (
    number         bigint generated always as identity constraint outbox_dead_pkey primary key,
    position       bigint not null,
    occurred_at    bigint not null,
    appended_at    bigint not null,
    died_at        bigint not null,
    schema_version bigint not null,
    attempts       bigint not null,
    id             uuid not null,
    bucket         smallint not null,
    route          text not null,
    topic          text not null,
    key            text,
    order_key      text not null,
    event_type     text not null,
    content_type   text not null,
    headers        bytea not null,
    payload        bytea not null,
    reason         text not null,
    first_failure  text,
    last_failure   text
);

create index outbox_dead_route on outbox_dead (route, topic, order_key);

-- Delivered messages, where a history is kept: in partitions by the time of delivery, created ahead
-- and dropped whole. A row without a partition goes to the default one, so that no settlement ever
-- waits for one to be created.
create sequence outbox_history_number as bigint minvalue 1 no cycle;

create table outbox_history (
    number         bigint not null default nextval('outbox_history_number'),
    position       bigint not null,
    occurred_at    bigint not null,
    appended_at    bigint not null,
    delivered_at   bigint not null,
    schema_version bigint not null,
    id             uuid not null,
    bucket         smallint not null,
    route          text not null,
    topic          text not null,
    key            text,
    order_key      text not null,
    event_type     text not null,
    content_type   text not null,
    headers        bytea not null,
    payload        bytea not null,
    constraint outbox_history_pkey primary key (number, delivered_at)
) partition by range (delivered_at);

alter sequence outbox_history_number owned by outbox_history.number;

create table outbox_history_rest partition of outbox_history default;

-- Expired rows are deleted from the default one; the others have no use for such an index.
create index outbox_history_rest_at on outbox_history_rest (delivered_at);

-- Messages that join their keys later.
create table outbox_scheduled (
    number         bigint generated always as identity constraint outbox_scheduled_pkey primary key,
    due_at         bigint not null,
    occurred_at    bigint not null default outbox_now(),
    appended_at    bigint not null default outbox_now(),
    schema_version bigint not null default 1,
    id             uuid not null default gen_random_uuid(),
    route          text not null default 'default',
    topic          text not null,
    key            text,
    event_type     text not null,
    content_type   text not null default 'application/json',
    headers        bytea not null default '',
    payload        bytea not null default ''
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);

create index outbox_scheduled_due on outbox_scheduled (due_at, number);
create index outbox_scheduled_id on outbox_scheduled (id);

-- Owners of the buckets of a route: in force while the relay lives, and for a bucket that is being
-- given up no longer than expires_at. While low_water is null, the one in its relay's row covers
-- the bucket too: a heartbeat that changes nothing else writes that row alone. It is stored here
-- again when the bucket changes owners, and when its relay begins to read anew.
create table outbox_lease (
    route      text not null,
    bucket     smallint not null,
    relay      uuid,
    epoch      bigint not null default 0,
    since      bigint not null default 0,
    low_water  bigint default 0,
    expires_at bigint,
    constraint outbox_lease_pkey primary key (route, bucket)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Relays, alive while expires_at is ahead, and not implausibly far. A heartbeat writes this one row.
create table outbox_relay (
    route             text not null,
    relay             uuid not null,
    label             text not null,
    expires_at        bigint not null,
    lasts             bigint not null,
    low_water         bigint not null default 0,
    unavailable_since bigint,
    fingerprint       bigint not null,
    has_session       boolean not null default false,
    session_lost_at   bigint,
    constraint outbox_relay_pkey primary key (route, relay)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Elected relays, for work that only one relay should do.
create table outbox_role (
    role       text constraint outbox_role_pkey primary key,
    relay      uuid not null,
    expires_at bigint not null,
    lasts      bigint not null
) with (fillfactor = 50);

-- Identity of the outbox: the source of its messages. One row.
create table outbox_identity (
    one boolean not null default true constraint outbox_identity_pkey primary key check (one),
    id  uuid not null
);

-- Pauses of operators. An empty topic means the whole route.
create table outbox_pause (
    route text not null,
    topic text not null,
    constraint outbox_pause_pkey primary key (route, topic)
);

-- Record of admin operations: who did what, to which messages. Ids have a space between two.
create table outbox_audit (
    number    bigint generated always as identity constraint outbox_audit_pkey primary key,
    at        bigint not null,
    actor     text not null,
    operation text not null,
    route     text,
    topic     text,
    key       text,
    detail    text not null,
    affected  bigint not null,
    ids       text not null
);

create index outbox_audit_at on outbox_audit (at);

-- Messages that consumers have handled. Analyzed only once the table is large: plans that were made
-- for a few rows, and are kept, would read all of it.
create table outbox_handled (
    handled_at bigint not null default (date_part('epoch', clock_timestamp()) * 1000000)::bigint,
    id          uuid not null,
    consumer    text not null,
    topic       text not null,
    key         text,
    constraint outbox_handled_pkey primary key (consumer, id)
) with (autovacuum_analyze_threshold = 10000);

create index outbox_handled_at on outbox_handled (consumer, handled_at);

-- Retentions of handled ids that processes were opened with, and when one last said so. Whichever
-- process removes ids does so by the longest.
create table outbox_retention (
    handled_ids_kept    bigint not null,
    handled_ids_max_age bigint not null,
    renewed_at          bigint not null,
    constraint outbox_retention_pkey primary key (handled_ids_kept, handled_ids_max_age)
);

insert into outbox_schema (version, name) values (1, 'tables');
