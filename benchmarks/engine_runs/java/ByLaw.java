import it.unimi.dsi.law.rank.PageRank;
import it.unimi.dsi.law.rank.PageRankParallelGaussSeidel;
import it.unimi.dsi.law.rank.SpectralRanking;
import it.unimi.dsi.webgraph.ArrayListMutableGraph;

/** The program that Common Crawl ranks hosts and domains with: it takes the transposed graph. */
final class ByLaw {
    public static void main(String[] arguments) throws Exception {
        Links links = new Links(arguments);
        var transposed = new ArrayListMutableGraph(links.pages);
        for (int at = 0; at < links.sources.length; at++) {
            transposed.addArc(links.targets[at], links.sources[at]);
        }
        var ranks = new PageRankParallelGaussSeidel(transposed.immutableView());
        ranks.alpha = PageRank.DEFAULT_ALPHA;
        double tolerance = links.given("tolerance", SpectralRanking.DEFAULT_THRESHOLD);
        ranks.stepUntil(new SpectralRanking.NormStoppingCriterion(tolerance));
        links.write(page -> ranks.rank[page]);
    }
}
