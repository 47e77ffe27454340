"""The command that compares importance with other scores."""

from opic.cli.options import File, ResultChosen, choosing, opened
from opic.cli.output import print_answer


@choosing
def compare(file: File, *, chosen: ResultChosen) -> None:
    """Compare importance with the scores in a file: Kendall's tau-b, Spearman's rho, overlap of the tops.

    FILE is an export of pages, Common Crawl's host ranks, or lines URL SCORE. Pages that only one of both has are
    counted and left out.
    """
    from opic.ops.compare import compare as run

    with opened(chosen) as backend:
        answer = run(backend.query, file)
    print_answer(answer, chosen.as_json)
