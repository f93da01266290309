-- SPDX-License-Identifier: Apache-2.0

-- The twin of PostgreSQL's file of the same name. Times are microseconds since the epoch, booleans 0 or 1, ids 16 bytes. Text
-- compares byte by byte (SQLite's default collation, BINARY). STRICT makes types real.

-- +goose Up
-- +goose StatementBegin
CREATE TABLE meta (
    id                     INTEGER PRIMARY KEY CHECK (id = 1),
    -- The release checks this number before each change; each migration raises it in its own transaction.
    schema_version         INTEGER NOT NULL,
    deployment_id          BLOB    NOT NULL,
    timeline               INTEGER NOT NULL CHECK (timeline BETWEEN 1 AND 4294967295),
    watermark_time         INTEGER NULL,
    watermark_lost_since   INTEGER NULL,
    -- The tools that get no new grant, a JSON list; '*' is all.
    paused                 TEXT    NOT NULL DEFAULT '[]'
) STRICT;
-- +goose StatementEnd

-- +goose StatementBegin
INSERT INTO meta (id, schema_version, deployment_id, timeline) VALUES (1, 1, randomblob(16), 1);
-- +goose StatementEnd

-- +goose StatementBegin
-- Why each timeline began.
CREATE TABLE timelines (
    number     INTEGER NOT NULL CHECK (number BETWEEN 1 AND 4294967295),
    begin_time INTEGER NOT NULL,
    lost_since INTEGER NULL,
    cause      TEXT    NOT NULL,
    PRIMARY KEY (number, begin_time)
) STRICT, WITHOUT ROWID;
-- +goose StatementEnd

-- +goose StatementBegin
INSERT INTO timelines (number, begin_time, cause) VALUES (1, CAST(unixepoch('subsec') * 1000000 AS INTEGER), 'created');
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TABLE operations (
    -- Written once. No statement of the ledger ever updates these columns.
    id                     BLOB    NOT NULL PRIMARY KEY,
    key_hash               BLOB    NOT NULL,
    downstream_key         TEXT    NOT NULL,
    scope                  TEXT    NOT NULL,
    principal              TEXT    NOT NULL,
    tool                   TEXT    NOT NULL,
    task                   TEXT    NOT NULL,
    subject_digest         BLOB    NULL,
    intent_time            INTEGER NULL,
    create_time            INTEGER NOT NULL,
    compensates            BLOB    NULL,
    corrects               BLOB    NULL,
    depends_on             BLOB    NULL,
    fingerprint_spec       INTEGER NOT NULL,
    fingerprint_secret     TEXT    NOT NULL,
    fingerprint_contract   TEXT    NOT NULL,
    fingerprint_digest     BLOB    NOT NULL,
    fingerprint_categories BLOB    NULL,

    record_version         INTEGER NOT NULL,
    state                  INTEGER NOT NULL,
    custody                INTEGER NOT NULL,
    custodian              TEXT    NOT NULL,
    queue_reason           INTEGER NOT NULL,
    sequence               INTEGER NOT NULL,
    version                INTEGER NOT NULL,
    last_hash              BLOB    NOT NULL,
    update_time            INTEGER NOT NULL,
    timeline               INTEGER NOT NULL,
    terms_contract         TEXT    NOT NULL,
    terms_effect           INTEGER NOT NULL,
    terms_effect_within    INTEGER NOT NULL,
    terms_key_retention    INTEGER NOT NULL,
    grant_claim_id         TEXT    NOT NULL,
    grant_worker_id        BLOB    NOT NULL,
    grant_epoch            INTEGER NOT NULL,
    grant_time             INTEGER NULL,
    grant_lease_until      INTEGER NULL,
    grant_send_until       INTEGER NULL,
    grant_lease            INTEGER NOT NULL,
    grant_started          INTEGER NOT NULL CHECK (grant_started IN (0, 1)),
    grant_released         INTEGER NOT NULL CHECK (grant_released IN (0, 1)),
    grant_used_approval    INTEGER NOT NULL CHECK (grant_used_approval IN (0, 1)),
    grant_used_waiver      INTEGER NOT NULL CHECK (grant_used_waiver IN (0, 1)),
    attempts               INTEGER NOT NULL,
    starts                 INTEGER NOT NULL,
    may_have_applied       INTEGER NOT NULL CHECK (may_have_applied IN (0, 1)),
    first_start            INTEGER NULL,
    last_send              INTEGER NULL,
    next_check_time        INTEGER NULL,
    check_number           INTEGER NOT NULL,
    check_began            INTEGER NULL,
    check_lease_until      INTEGER NULL,
    check_open             INTEGER NOT NULL CHECK (check_open IN (0, 1)),
    target_summary         BLOB    NOT NULL,
    target_attributes      BLOB    NULL,
    result                 BLOB    NULL,
    failure                BLOB    NULL,
    final_time             INTEGER NULL,
    needs_attention        INTEGER NOT NULL CHECK (needs_attention IN (0, 1)),
    compensated_by         BLOB    NULL,
    detail                 BLOB    NOT NULL,

    -- A second witness under the code: none of these can be broken by a correct release.
    CONSTRAINT operations_lengths CHECK (
        octet_length(key_hash) = 32 AND octet_length(downstream_key) = 32
        AND octet_length(scope) BETWEEN 1 AND 2048 AND octet_length(principal) BETWEEN 1 AND 2048
        AND octet_length(tool) BETWEEN 1 AND 128 AND octet_length(task) BETWEEN 1 AND 255
        AND octet_length(target_summary) <= 255 AND octet_length(custodian) <= 2048
        AND octet_length(fingerprint_digest) = 32 AND octet_length(last_hash) = 32),
    CONSTRAINT operations_ranges CHECK (
        record_version >= 1 AND state BETWEEN 1 AND 6 AND custody BETWEEN 1 AND 3 AND queue_reason >= 0
        AND sequence >= version AND version >= 1 AND timeline >= 1
        AND starts >= 0 AND attempts >= starts AND update_time >= create_time),
    CONSTRAINT operations_completed CHECK (
        (state = 3 AND result IS NOT NULL) OR (state <> 3 AND (result IS NULL OR state = 6))),
    CONSTRAINT operations_failed CHECK (
        (state = 4 AND failure IS NOT NULL) OR (state <> 4 AND (failure IS NULL OR state = 6))),
    CONSTRAINT operations_processing CHECK (
        state <> 2 OR (grant_claim_id <> '' AND grant_epoch <> 0 AND grant_started AND grant_lease_until IS NOT NULL
        AND grant_send_until IS NOT NULL AND first_start IS NOT NULL AND starts >= 1)),
    CONSTRAINT operations_final CHECK (
        (state IN (3, 4, 6)) = (final_time IS NOT NULL) AND (state NOT IN (3, 4, 6) OR custody = 1)),
    CONSTRAINT operations_queued CHECK ((custody = 2) = (queue_reason <> 0)),
    CONSTRAINT operations_held CHECK ((custody = 3) = (custodian <> '')),
    CONSTRAINT operations_started CHECK (starts = 0 OR first_start IS NOT NULL),
    CONSTRAINT operations_checked CHECK (NOT check_open OR check_number <> 0)
) STRICT;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TABLE events (
    operation_id           BLOB    NOT NULL,
    sequence               INTEGER NOT NULL CHECK (sequence >= 1),
    -- What asked for it; all three NULL for what has no claim_id or command_id. No two events of one operation have the same: the
    -- compare-and-swap looks.
    command                TEXT    NULL,
    command_id             TEXT    NULL,
    command_digest         TEXT    NULL,
    time                   INTEGER NOT NULL,
    -- The bytes that were hashed, and their hash.
    body                   BLOB    NOT NULL,
    hash                   BLOB    NOT NULL CHECK (octet_length(hash) = 32),
    PRIMARY KEY (operation_id, sequence),
    CONSTRAINT events_command_whole CHECK (
        (command IS NULL) = (command_id IS NULL) AND (command IS NULL) = (command_digest IS NULL))
) STRICT;
-- +goose StatementEnd

-- +goose StatementBegin
-- Versions of tools' contracts, by which records are judged that were made under them. Rows are never changed.
CREATE TABLE contracts (
    version                TEXT    NOT NULL PRIMARY KEY CHECK (octet_length(version) BETWEEN 1 AND 64),
    document               BLOB    NOT NULL CHECK (octet_length(document) > 0),
    create_time            INTEGER NOT NULL
) STRICT;
-- +goose StatementEnd

-- +goose StatementBegin
-- Check values of the secrets that key fingerprints. The secrets themselves are never here.
CREATE TABLE fingerprint_secrets (
    id                     TEXT    NOT NULL PRIMARY KEY CHECK (octet_length(id) BETWEEN 1 AND 64),
    -- Written once: records of this id were made with that secret.
    check_value            BLOB    NOT NULL CHECK (octet_length(check_value) = 8),
    -- It was the primary of a server, so that records may name it.
    used                   INTEGER NOT NULL CHECK (used IN (0, 1)),
    create_time            INTEGER NOT NULL
) STRICT;
-- +goose StatementEnd

-- +goose StatementBegin
-- Whose turn it is to ask a tool's target. A document is read and written by those who ask, not by the ledger.
CREATE TABLE gates (
    tool                   TEXT    NOT NULL PRIMARY KEY CHECK (octet_length(tool) BETWEEN 1 AND 128),
    document               BLOB    NOT NULL CHECK (octet_length(document) > 0)
) STRICT;
-- +goose StatementEnd

-- +goose StatementBegin
-- Whose the slots of contracts' unique rules are. A slot is a keyed digest: nobody can learn values from it.
CREATE TABLE slots (
    slot                   BLOB    NOT NULL PRIMARY KEY CHECK (octet_length(slot) = 32),
    operation_id           BLOB    NOT NULL
) STRICT;
-- +goose StatementEnd

-- +goose StatementBegin
-- What people have said about whole tools: pauses, resumptions, checks at once. Rows are never changed.
CREATE TABLE tool_commands (
    command_id             TEXT    NOT NULL PRIMARY KEY CHECK (octet_length(command_id) BETWEEN 1 AND 64),
    kind                   TEXT    NOT NULL,
    tool                   TEXT    NOT NULL CHECK (octet_length(tool) BETWEEN 1 AND 128),
    actor                  TEXT    NOT NULL CHECK (octet_length(actor) BETWEEN 1 AND 2048),
    reason                 BLOB    NOT NULL,
    time                   INTEGER NOT NULL,
    due                    INTEGER NOT NULL CHECK (due >= 0)
) STRICT;
-- +goose StatementEnd

-- +goose StatementBegin
-- The latest settlement of the keys of a tool that were forgotten: an absent key that may be older can't be told from one of them.
CREATE TABLE forgotten (
    tool                   TEXT    NOT NULL PRIMARY KEY CHECK (octet_length(tool) BETWEEN 1 AND 128),
    final_time             INTEGER NOT NULL
) STRICT;
-- +goose StatementEnd

-- +goose StatementBegin
-- What people look for.
CREATE INDEX operations_with_people ON operations (create_time, id) WHERE custody <> 1;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE INDEX operations_needing_attention ON operations (create_time, id) WHERE needs_attention;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE INDEX slots_by_operation ON slots (operation_id);
-- +goose StatementEnd
-- +goose StatementBegin
CREATE INDEX operations_downstream_key ON operations (downstream_key);
-- +goose StatementEnd
-- +goose StatementBegin
-- Only the due scan names next_check_time; the compare-and-swap never matches this index.
CREATE INDEX operations_due ON operations (next_check_time, id, tool) WHERE next_check_time IS NOT NULL;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE INDEX operations_by_create ON operations (scope, create_time, id);
-- +goose StatementEnd
-- +goose StatementBegin
CREATE INDEX operations_by_update ON operations (scope, update_time, id);
-- +goose StatementEnd
-- +goose StatementBegin
CREATE INDEX operations_by_task ON operations (scope, task, create_time, id);
-- +goose StatementEnd
-- +goose StatementBegin
CREATE INDEX operations_unknown ON operations (scope, task, tool, create_time, id) WHERE state = 5;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE INDEX operations_unknown_by_tool ON operations (tool) WHERE state = 5;
-- +goose StatementEnd

-- +goose Down
DROP TABLE tool_commands;
DROP TABLE fingerprint_secrets;
DROP TABLE gates;
DROP TABLE forgotten;
DROP TABLE slots;
DROP TABLE contracts;
DROP TABLE events;
DROP TABLE operations;
DROP TABLE timelines;
DROP TABLE meta;
