import edu.uci.ics.jung.algorithms.scoring.PageRank;
import edu.uci.ics.jung.graph.DirectedSparseGraph;

final class ByJung {
    public static void main(String[] arguments) throws Exception {
        Links links = new Links(arguments);
        var graph = new DirectedSparseGraph<Integer, Integer>();
        for (int page = 0; page < links.pages; page++) {
            graph.addVertex(page);
        }
        for (int at = 0; at < links.sources.length; at++) {
            graph.addEdge(at, links.sources[at], links.targets[at]);
        }
        var ranks = new PageRank<>(graph, links.given("alpha", 0.15));
        ranks.setMaxIterations((int) links.given("steps", ranks.getMaxIterations()));
        ranks.setTolerance(links.given("tolerance", ranks.getTolerance()));
        ranks.evaluate();
        links.write(ranks::getVertexScore);
    }
}
