import java.util.HashMap;
import org.apache.tinkerpop.gremlin.process.computer.ranking.pagerank.PageRankVertexProgram;
import org.apache.tinkerpop.gremlin.structure.Vertex;
import org.apache.tinkerpop.gremlin.tinkergraph.structure.TinkerGraph;

final class ByTinkerPop {
    public static void main(String[] arguments) throws Exception {
        Links links = new Links(arguments);
        TinkerGraph graph = TinkerGraph.open();
        Vertex[] pages = new Vertex[links.pages];
        for (int page = 0; page < links.pages; page++) {
            pages[page] = graph.addVertex("page", page);
        }
        for (int at = 0; at < links.sources.length; at++) {
            pages[links.sources[at]].addEdge("links", pages[links.targets[at]]);
        }
        var program = PageRankVertexProgram.build().alpha(0.85);
        if (links.given("steps", 0) > 0) {
            program = program.iterations((int) links.given("steps", 0)).epsilon(links.given("tolerance", 0));
        }
        var found = graph.compute().program(program.create(graph)).submit().get().graph();
        var ranks = new HashMap<Integer, Double>();
        found.vertices().forEachRemaining(
            page -> ranks.put(page.value("page"), page.value(PageRankVertexProgram.PAGE_RANK)));
        links.write(ranks::get);
    }
}
