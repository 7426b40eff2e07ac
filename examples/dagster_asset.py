"""A Dagster asset that is the results of a job: ``dagster dev -f examples/dagster_asset.py``."""

# No `from __future__ import annotations`: Dagster reads the types of the function below, and does not take strings for them.
import dagster

import harvester


class Summaries(dagster.Config):
    source: str = "docs.parquet"
    url: str | None = None


@dagster.asset
def summaries(context: dagster.AssetExecutionContext, config: Summaries) -> dagster.MaterializeResult:
    """Results beside the source, as Parquet. A second run over the same file finds the same job."""
    with harvester.connect(config.url) as client:
        job = client.submit(config.source, "summarize").watch(progress=False)
        context.log.info("job %s", job.id)
        out = config.source.removesuffix(".parquet") + "-summaries.parquet"
        import pyarrow.parquet as pq

        with job.results().reader() as rows, pq.ParquetWriter(out, rows.schema) as writer:
            for batch in rows:
                writer.write_batch(batch)
    return dagster.MaterializeResult(metadata={"job": job.id, "rows": job.rows_done, "file": out})
