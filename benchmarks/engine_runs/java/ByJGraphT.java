import org.jgrapht.alg.scoring.PageRank;
import org.jgrapht.graph.DefaultEdge;
import org.jgrapht.graph.SimpleDirectedGraph;

final class ByJGraphT {
    public static void main(String[] arguments) throws Exception {
        Links links = new Links(arguments);
        var graph = new SimpleDirectedGraph<Integer, DefaultEdge>(DefaultEdge.class);
        for (int page = 0; page < links.pages; page++) {
            graph.addVertex(page);
        }
        for (int at = 0; at < links.sources.length; at++) {
            graph.addEdge(links.sources[at], links.targets[at]);
        }
        int steps = (int) links.given("steps", PageRank.MAX_ITERATIONS_DEFAULT);
        double tolerance = links.given("tolerance", PageRank.TOLERANCE_DEFAULT);
        links.write(new PageRank<>(graph, 0.85, steps, tolerance).getScores()::get);
    }
}
