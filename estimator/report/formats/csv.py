"""The records, one per line, or every table below each other, one value per line: raw bytes and fractions, empty where
a figure is not known."""

from __future__ import annotations

import csv
import io

from ..tables import Report

__all__ = ["render"]


def render(report: Report) -> str:
    """The columns of the records; else ``table, row, column, value``, of which a spreadsheet's pivot gives any of the
    tables back."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if report.records is not None:
        writer.writerow(column.name for column in report.records.columns)
        writer.writerows(report.records.rows)  # None is written as nothing
        return text.getvalue()
    writer.writerow(("table", "row", "column", "value"))
    for table in report.tables:
        for row in table.rows if table.total is None else (*table.rows, table.total):
            for column, value in zip(table.columns[1:], row[1:], strict=True):
                if value != "":
                    writer.writerow((table.name, row[0], column.name, "" if value is None else value))
    return text.getvalue()
