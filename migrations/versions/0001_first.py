"""Runs, their workers, steps, epochs, events, resources, checkpoints, artifacts and graphs."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Make every table."""
    op.create_table(
        "graph",
        sa.Column("hash", sa.String(), nullable=False),
        sa.Column("label", sa.String(), nullable=False),
        sa.Column("svg", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_graph")),
    )
    op.create_table(
        "run",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("name", sa.String(), nullable=True),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("recipe", sa.String(), nullable=False),
        sa.Column("policy", sa.String(), nullable=False),
        sa.Column("backend", sa.String(), nullable=True),
        sa.Column("world_size", sa.Integer(), nullable=True),
        sa.Column("batch_size", sa.Integer(), nullable=True),
        sa.Column("num_epochs", sa.Integer(), nullable=True),
        sa.Column("total_samples", sa.BigInteger(), nullable=True),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("config", JSON, nullable=False),
        sa.Column("training_meta", JSON, nullable=False),
        sa.Column("graph_hash", sa.String(), nullable=True),
        sa.Column("version", sa.String(), nullable=True),
        sa.Column("git_commit", sa.String(), nullable=True),
        sa.Column("flow_run_id", sa.String(), nullable=True),
        sa.Column("parent_run_id", sa.String(), nullable=True),
        sa.Column("tags", JSON, nullable=False),
        sa.Column("notes", sa.String(), nullable=True),
        sa.Column("error", sa.String(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("avg_loss", sa.Float(), nullable=True),
        sa.Column("num_samples", sa.BigInteger(), nullable=False),
        sa.Column("num_batches", sa.BigInteger(), nullable=False),
        sa.Column("num_syncs", sa.BigInteger(), nullable=False),
        sa.Column("capacity_efficiency", sa.Float(), nullable=True),
        sa.Column("anchor", sa.Integer(), nullable=True),
        sa.Column("global_step", sa.BigInteger(), nullable=False),
        sa.Column("wall_s", sa.Float(), nullable=True),
        sa.Column("eval", JSON, nullable=False),
        sa.Column("nonfinite", JSON, nullable=True),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("started_at", TIME, nullable=True),
        sa.Column("heartbeat_at", TIME, nullable=True),
        sa.Column("ended_at", TIME, nullable=True),
        sa.Column("cancel_requested_at", TIME, nullable=True),
        sa.ForeignKeyConstraint(["graph_hash"], ["graph.hash"], name=op.f("fk_run_graph_hash")),
        sa.ForeignKeyConstraint(["parent_run_id"], ["run.id"], name=op.f("fk_run_parent_run_id"), ondelete="SET NULL"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_run")),
    )
    op.create_index(op.f("ix_run_flow_run_id"), "run", ["flow_run_id"], unique=False)
    op.create_index(op.f("ix_run_status"), "run", ["status"], unique=False)
    op.create_table(
        "artifact",
        sa.Column("run_id", sa.String(length=26), nullable=False),
        sa.Column("path", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_artifact_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "path", name=op.f("pk_artifact")),
    )
    op.create_table(
        "checkpoint",
        sa.Column("run_id", sa.String(length=26), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("global_step", sa.BigInteger(), nullable=False),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.Column("path", sa.String(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_checkpoint_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "version", name=op.f("pk_checkpoint")),
    )
    op.create_table(
        "epoch",
        sa.Column("run_id", sa.String(length=26), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("time_s", sa.Float(), nullable=False),
        sa.Column("wall_time", TIME, nullable=False),
        sa.Column("avg_loss", sa.Float(), nullable=True),
        sa.Column("epoch_ms", sa.Float(), nullable=True),
        sa.Column("lr", sa.Float(), nullable=True),
        sa.Column("num_batches", sa.Integer(), nullable=False),
        sa.Column("num_samples", sa.BigInteger(), nullable=False),
        sa.Column("capacity_efficiency", sa.Float(), nullable=True),
        sa.Column("eval", JSON, nullable=False),
        sa.Column("nonfinite", JSON, nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_epoch_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "seq", name=op.f("pk_epoch")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "event",
        sa.Column("run_id", sa.String(length=26), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=True),
        sa.Column("time_s", sa.Float(), nullable=False),
        sa.Column("wall_time", TIME, nullable=False),
        sa.Column("payload", JSON, nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_event_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "seq", name=op.f("pk_event")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "resource_sample",
        sa.Column("run_id", sa.String(length=26), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("device", sa.String(), nullable=False),
        sa.Column("time_s", sa.Float(), nullable=False),
        sa.Column("wall_time", TIME, nullable=False),
        sa.Column("utilization", sa.Float(), nullable=True),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_resource_sample_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "seq", name=op.f("pk_resource_sample")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "step",
        sa.Column("run_id", sa.String(length=26), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("global_step", sa.BigInteger(), nullable=False),
        sa.Column("time_s", sa.Float(), nullable=False),
        sa.Column("wall_time", TIME, nullable=False),
        sa.Column("loss", sa.Float(), nullable=True),
        sa.Column("lr", sa.Float(), nullable=True),
        sa.Column("samples_per_s", sa.Float(), nullable=True),
        sa.Column("num_batches", sa.Integer(), nullable=False),
        sa.Column("num_samples", sa.BigInteger(), nullable=False),
        sa.Column("busy_ms", sa.Float(), nullable=True),
        sa.Column("nonfinite", JSON, nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_step_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "seq", name=op.f("pk_step")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "worker",
        sa.Column("run_id", sa.String(length=26), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("device", sa.String(), nullable=False),
        sa.Column("device_name", sa.String(), nullable=True),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=True),
        sa.Column("slowdown", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_worker_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "rank", name=op.f("pk_worker")),
    )
    op.create_table(
        "epoch_rank",
        sa.Column("run_id", sa.String(length=26), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("device", sa.String(), nullable=False),
        sa.Column("loss", sa.Float(), nullable=True),
        sa.Column("samples_per_s", sa.Float(), nullable=True),
        sa.Column("batch_share", sa.Float(), nullable=True),
        sa.Column("busy_ms", sa.Float(), nullable=True),
        sa.Column("nonfinite", JSON, nullable=True),
        sa.ForeignKeyConstraint(
            ["run_id", "seq"], ["epoch.run_id", "epoch.seq"], name=op.f("fk_epoch_rank_run_id_seq"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "seq", "rank", name=op.f("pk_epoch_rank")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "epoch_scalar",
        sa.Column("run_id", sa.String(length=26), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("value", sa.Float(), nullable=True),
        sa.Column("nonfinite", JSON, nullable=True),
        sa.ForeignKeyConstraint(
            ["run_id", "seq"],
            ["epoch.run_id", "epoch.seq"],
            name=op.f("fk_epoch_scalar_run_id_seq"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("run_id", "seq", "name", "rank", name=op.f("pk_epoch_scalar")),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    """Drop every table, and with them every run."""
    op.drop_table("epoch_scalar")
    op.drop_table("epoch_rank")
    op.drop_table("worker")
    op.drop_table("step")
    op.drop_table("resource_sample")
    op.drop_table("event")
    op.drop_table("epoch")
    op.drop_table("checkpoint")
    op.drop_table("artifact")
    op.drop_index(op.f("ix_run_status"), table_name="run")
    op.drop_index(op.f("ix_run_flow_run_id"), table_name="run")
    op.drop_table("run")
    op.drop_table("graph")
