"""Tables of the read model. Another version of them is built anew from the log, never migrated."""

SCHEMA_VERSION = 1
"""Change it with anything below, and with anything in the JSON that the tables hold."""

TABLES = f"""
CREATE TABLE checkpoint (
    one          INTEGER PRIMARY KEY CHECK (one = 1),
    position     INTEGER NOT NULL,
    message_id   TEXT    NOT NULL,
    term         INTEGER NOT NULL,
    at           INTEGER NOT NULL,
    wall         INTEGER NOT NULL,
    fold_version INTEGER NOT NULL
);

CREATE TABLE entries (
    position         INTEGER PRIMARY KEY,
    ledger           INTEGER NOT NULL,
    entry            INTEGER NOT NULL,
    batch            INTEGER NOT NULL,
    id               TEXT    NOT NULL,
    term             INTEGER NOT NULL,
    at               INTEGER NOT NULL,
    wall             INTEGER NOT NULL,
    kind             TEXT    NOT NULL,
    topic            TEXT    NOT NULL,
    input_message_id TEXT    NOT NULL,
    key              TEXT    NOT NULL,
    schema           TEXT    NOT NULL,
    bytes            BLOB    NOT NULL
);
CREATE INDEX entries_by_message ON entries (ledger, entry, batch);
CREATE INDEX entries_by_wall ON entries (wall);

CREATE TABLE facts (
    position INTEGER NOT NULL,
    idx      INTEGER NOT NULL,
    kind     TEXT    NOT NULL,
    subject  TEXT    NOT NULL,
    text     TEXT    NOT NULL,
    json     TEXT    NOT NULL,
    PRIMARY KEY (position, idx)
) WITHOUT ROWID;
CREATE INDEX facts_by_kind ON facts (kind, position);

CREATE TABLE mentions (
    subject  TEXT    NOT NULL,
    position INTEGER NOT NULL,
    idx      INTEGER NOT NULL,
    PRIMARY KEY (subject, position, idx)
) WITHOUT ROWID;

CREATE TABLE models (
    key        TEXT PRIMARY KEY,
    state      TEXT    NOT NULL,
    generation INTEGER NOT NULL,
    wanted     INTEGER NOT NULL,
    available  INTEGER NOT NULL,
    json       TEXT    NOT NULL
) WITHOUT ROWID;

CREATE TABLE replicas (
    model      TEXT    NOT NULL,
    generation INTEGER NOT NULL,
    server     TEXT    NOT NULL,
    state      TEXT    NOT NULL,
    json       TEXT    NOT NULL,
    PRIMARY KEY (model, generation, server)
) WITHOUT ROWID;
CREATE INDEX replicas_by_server ON replicas (server);

CREATE TABLE servers (
    key         TEXT PRIMARY KEY,
    host        TEXT    NOT NULL,
    status      TEXT    NOT NULL,
    lost        INTEGER NOT NULL,
    schedulable INTEGER NOT NULL,
    json        TEXT    NOT NULL
) WITHOUT ROWID;

PRAGMA user_version = {SCHEMA_VERSION};
"""
"""``mentions`` says which models and servers a fact is part of the story of; its subject alone does not."""
