"""`headrace shards`: who plans what, and how far behind."""

import click

from headrace.streams.cli.options import Where, json_option, where_options


@click.command("shards")
@where_options
@json_option
@click.option("--members", "show", flag_value="members", help="One line for each process instead.")
@click.option("--dgds", "show", flag_value="dgds", help="One line for each DGD instead.")
def command(where: Where, as_json: bool, show: str | None) -> None:
    """Show who owns which partition of the DGDs, how far behind it is, and how old its snapshots are.

    A partition is planned by one of the processes that run with the same configuration; when that one ends, another
    takes it over. LAG: by how much the newest input is newer than the last snapshot that has it not. AGE: of the
    oldest last snapshot among the partition's DGDs. With --dgd only what concerns that one. JSON has everything.

    \b
    headrace shards --bus nats://nats:4222
    headrace shards --members
    headrace shards --json | jq '.partitions[] | select(.lag_s > 30)'
    """
    from headrace.streams.cli.shards_show import show_shards

    show_shards(where.settings(), show or "partitions", where.dgd, as_json=as_json)
