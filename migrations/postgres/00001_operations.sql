-- SPDX-License-Identifier: Apache-2.0

-- The schema can be distributed by operation id, slots by themselves: each unique constraint contains that, and there is no sequence, foreign key, trigger
-- or lock beside the rows. Text compares byte by byte (COLLATE "C"), so that no two keys are ever folded into one. Documents are
-- JSON in bytea: text can't hold U+0000. Durations are nanoseconds. Unset times are NULL, unset texts ''.

-- +goose Up
-- +goose StatementBegin
CREATE TABLE meta (
    id                   smallint    PRIMARY KEY CHECK (id = 1),
    -- The release checks this number before each change; each migration raises it in its own transaction.
    schema_version       integer     NOT NULL,
    deployment_id        uuid        NOT NULL,
    timeline             bigint      NOT NULL CHECK (timeline BETWEEN 1 AND 4294967295),
    watermark_time       timestamptz NULL,
    watermark_lost_since timestamptz NULL,
    -- The server that has the database, as it names itself: its system identifier and its own timeline. NULL: it does not, or has not been asked.
    server_id            text COLLATE "C" NULL,
    server_timeline      bigint      NULL,
    -- The tools that get no new grant; '*' is all. Beside what each decision reads anyway, so that it costs none of them a statement.
    paused               text[] COLLATE "C" NOT NULL DEFAULT '{}'
);
-- +goose StatementEnd

-- +goose StatementBegin
INSERT INTO meta (id, schema_version, deployment_id, timeline) VALUES (1, 1, gen_random_uuid(), 1);
-- +goose StatementEnd

-- +goose StatementBegin
-- Why each timeline began, and where the store was taken over without a loss.
CREATE TABLE timelines (
    number          bigint           NOT NULL CHECK (number BETWEEN 1 AND 4294967295),
    begin_time      timestamptz      NOT NULL,
    lost_since      timestamptz      NULL,
    cause           text COLLATE "C" NOT NULL,
    server_id       text COLLATE "C" NULL,
    server_timeline bigint           NULL,
    PRIMARY KEY (number, begin_time)
);
-- +goose StatementEnd

-- +goose StatementBegin
INSERT INTO timelines (number, begin_time, cause) VALUES (1, clock_timestamp(), 'created');
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TABLE operations (
    -- Written once. No statement of the ledger ever updates these columns.
    id                     uuid             PRIMARY KEY,
    downstream_key         uuid             NOT NULL,
    compensates            uuid             NULL,
    corrects               uuid             NULL,
    intent_time            timestamptz      NULL,
    create_time            timestamptz      NOT NULL,
    fingerprint_spec       integer          NOT NULL,
    key_hash               bytea            NOT NULL,
    scope                  text COLLATE "C" NOT NULL,
    principal              text COLLATE "C" NOT NULL,
    tool                   text COLLATE "C" NOT NULL,
    task                   text COLLATE "C" NOT NULL,
    subject_digest         bytea            NULL,
    depends_on             bytea            NULL,
    fingerprint_secret     text COLLATE "C" NOT NULL,
    fingerprint_contract   text COLLATE "C" NOT NULL,
    fingerprint_digest     bytea            NOT NULL,
    fingerprint_categories bytea            NULL,

    -- What a claim writes and few changes touch. The log has of a change only what lies between the first byte that changes and the
    -- last one, so what each change touches comes last.
    timeline               bigint           NOT NULL,
    terms_effect_within    bigint           NOT NULL,
    terms_key_retention    bigint           NOT NULL,
    grant_epoch            bigint           NOT NULL,
    grant_time             timestamptz      NULL,
    grant_send_until       timestamptz      NULL,
    grant_lease            bigint           NOT NULL,
    attempts               bigint           NOT NULL,
    starts                 bigint           NOT NULL,
    first_start            timestamptz      NULL,
    last_send              timestamptz      NULL,
    check_number           bigint           NOT NULL,
    check_began            timestamptz      NULL,
    check_lease_until      timestamptz      NULL,
    record_version         smallint         NOT NULL,
    terms_effect           smallint         NOT NULL,
    custody                smallint         NOT NULL,
    queue_reason           smallint         NOT NULL,
    grant_started          boolean          NOT NULL,
    grant_released         boolean          NOT NULL,
    grant_used_approval    boolean          NOT NULL,
    grant_used_waiver      boolean          NOT NULL,
    may_have_applied       boolean          NOT NULL,
    check_open             boolean          NOT NULL,
    needs_attention        boolean          NOT NULL,
    custodian              text COLLATE "C" NOT NULL,
    terms_contract         text COLLATE "C" NOT NULL,
    grant_claim_id         text COLLATE "C" NOT NULL,
    grant_worker_id        bytea            NOT NULL,
    target_summary         bytea            NOT NULL,
    target_attributes      bytea            NULL,
    compensated_by         bytea            NULL,

    sequence               bigint           NOT NULL,
    version                bigint           NOT NULL,
    update_time            timestamptz      NOT NULL,
    grant_lease_until      timestamptz      NULL,
    next_check_time        timestamptz      NULL,
    final_time             timestamptz      NULL,
    state                  smallint         NOT NULL,
    last_hash              bytea            NOT NULL,
    detail                 bytea            NOT NULL,
    failure                bytea            NULL,
    result                 bytea            NULL,
    result_payload         bytea            NULL,

    -- A second witness under the code: none of these can be broken by a correct release.
    CONSTRAINT operations_lengths CHECK (
        octet_length(key_hash) = 32
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
-- A row is changed soon after it was made: with room for that on its page, and no index over what changes, neither an index nor the
-- rest of the row is written again.
) WITH (fillfactor = 40);
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TABLE events (
    operation_id     uuid             NOT NULL,
    -- hashtextextended(scope, 0): who follows what changes in a scope finds it here.
    scope_key        bigint           NOT NULL,
    sequence         bigint           NOT NULL CHECK (sequence >= 1),
    version          bigint           NOT NULL CHECK (version >= 1),
    epoch            bigint           NOT NULL,
    time             timestamptz      NOT NULL,
    kind             smallint         NOT NULL CHECK (kind >= 1),
    from_state       smallint         NOT NULL,
    to_state         smallint         NOT NULL,
    actor_kind       smallint         NOT NULL,
    actor            text COLLATE "C" NOT NULL,
    -- What asked for it. No two events of one operation have the same of these, where there is an id: the compare-and-swap looks.
    command          text COLLATE "C" NOT NULL,
    command_id       text COLLATE "C" NOT NULL,
    command_digest   text COLLATE "C" NOT NULL,
    contract_version text COLLATE "C" NOT NULL,
    facts            bytea            NULL,
    note             bytea            NULL,
    -- The canonical text that was hashed is made of the above.
    previous_hash    bytea            NULL CHECK (octet_length(previous_hash) = 32),
    hash             bytea            NOT NULL CHECK (octet_length(hash) = 32),
    PRIMARY KEY (operation_id, sequence)
);
-- +goose StatementEnd

-- +goose StatementBegin
-- The next_check_time of each row that has one. It is an index that the ledger keeps itself, in the transaction of the row: over a column of
-- the row, each change would be one of all its indexes.
CREATE TABLE due (
    next_check_time  timestamptz      NOT NULL,
    operation_id     uuid             NOT NULL,
    -- A digest of the tool, so that a long backlog of one can be passed by.
    tool_key         bigint           NOT NULL,
    PRIMARY KEY (next_check_time, operation_id)
);
-- +goose StatementEnd

-- +goose StatementBegin
-- Versions of tools' contracts, by which records are judged that were made under them. Rows are never changed. The unique constraint is
-- what they are distributed by, or each node has all of them.
CREATE TABLE contracts (
    version     text COLLATE "C" PRIMARY KEY CHECK (octet_length(version) BETWEEN 1 AND 64),
    document    bytea            NOT NULL CHECK (octet_length(document) > 0),
    create_time timestamptz      NOT NULL
);
-- +goose StatementEnd

-- +goose StatementBegin
-- Check values of the secrets that key fingerprints. The secrets themselves are never here.
CREATE TABLE fingerprint_secrets (
    id          text COLLATE "C" PRIMARY KEY CHECK (octet_length(id) BETWEEN 1 AND 64),
    -- Written once: records of this id were made with that secret.
    check_value bytea            NOT NULL CHECK (octet_length(check_value) = 8),
    -- It was the primary of a server, so that records may name it.
    used        boolean          NOT NULL,
    create_time timestamptz      NOT NULL
);
-- +goose StatementEnd

-- +goose StatementBegin
-- The rows that are UNKNOWN, by a digest of scope, task and tool, and by one of the tool alone: kept as due is.
CREATE TABLE unknown (
    like_key         bigint           NOT NULL,
    tool_key         bigint           NOT NULL,
    create_time      timestamptz      NOT NULL,
    operation_id     uuid             NOT NULL,
    PRIMARY KEY (like_key, create_time, operation_id)
);
-- +goose StatementEnd

-- +goose StatementBegin
-- Whose the slots of contracts' unique rules are. A slot is a keyed digest of scope, subject, tool and what a rule compares: nobody can
-- learn values from it. It is what the table is distributed by.
CREATE TABLE slots (
    slot             bytea            PRIMARY KEY CHECK (octet_length(slot) = 32),
    operation_id     uuid             NOT NULL
);
-- +goose StatementEnd

-- +goose StatementBegin
-- Whose turn it is to ask a tool's target. A document is read and written by those who ask, not by the ledger; it is changed in place.
CREATE TABLE gates (
    tool             text COLLATE "C" PRIMARY KEY CHECK (octet_length(tool) BETWEEN 1 AND 128),
    document         bytea            NOT NULL CHECK (octet_length(document) > 0)
) WITH (fillfactor = 10);
-- +goose StatementEnd

-- +goose StatementBegin
-- What people have said about whole tools: pauses, resumptions, checks at once. Rows are never changed.
CREATE TABLE tool_commands (
    command_id  text COLLATE "C" PRIMARY KEY CHECK (octet_length(command_id) BETWEEN 1 AND 64),
    kind        text COLLATE "C" NOT NULL,
    tool        text COLLATE "C" NOT NULL CHECK (octet_length(tool) BETWEEN 1 AND 128),
    actor       text COLLATE "C" NOT NULL CHECK (octet_length(actor) BETWEEN 1 AND 2048),
    reason      bytea            NOT NULL,
    time        timestamptz      NOT NULL,
    due         bigint           NOT NULL CHECK (due >= 0)
);
-- +goose StatementEnd

-- +goose StatementBegin
-- The latest settlement of the keys of a tool that were forgotten: an absent key that may be older can't be told from one of them.
CREATE TABLE forgotten (
    tool        text COLLATE "C" PRIMARY KEY CHECK (octet_length(tool) BETWEEN 1 AND 128),
    final_time  timestamptz      NOT NULL
);
-- +goose StatementEnd

-- +goose StatementBegin
-- What people look for. No change of an operation that only automation deals with touches a column of these two.
CREATE INDEX operations_with_people ON operations (create_time, id) WHERE custody <> 1;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE INDEX operations_needing_attention ON operations (create_time, id) WHERE needs_attention;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE INDEX slots_by_operation ON slots (operation_id);
-- +goose StatementEnd

-- +goose StatementBegin
CREATE INDEX unknown_by_tool ON unknown (tool_key, create_time);
-- +goose StatementEnd

-- +goose StatementBegin
CREATE INDEX operations_downstream_key ON operations (downstream_key);
-- +goose StatementEnd
-- +goose StatementBegin
-- Texts are as long as callers make them: these have their digests, and the statements compare both.
CREATE INDEX operations_by_create ON operations (hashtextextended(scope, 0), create_time, id);
-- +goose StatementEnd
-- +goose StatementBegin
CREATE INDEX operations_by_task ON operations (hashtextextended(task, hashtextextended(scope, 0)), create_time, id);
-- +goose StatementEnd

-- +goose StatementBegin
-- The last event of a row has its update_time.
CREATE INDEX events_by_time ON events (scope_key, time, operation_id);
-- +goose StatementEnd

-- +goose Down
DROP TABLE tool_commands;
DROP TABLE fingerprint_secrets;
DROP TABLE gates;
DROP TABLE forgotten;
DROP TABLE slots;
DROP TABLE contracts;
DROP TABLE unknown;
DROP TABLE due;
DROP TABLE events;
DROP TABLE operations;
DROP TABLE timelines;
DROP TABLE meta;
