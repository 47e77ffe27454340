import org.gephi.graph.api.Configuration;
import org.gephi.graph.api.GraphModel;
import org.gephi.graph.api.Node;
import org.gephi.statistics.plugin.PageRank;

final class ByGephi {
    public static void main(String[] arguments) throws Exception {
        Links links = new Links(arguments);
        GraphModel model = GraphModel.Factory.newInstance(new Configuration());
        var graph = model.getDirectedGraph();
        Node[] pages = new Node[links.pages];
        for (int page = 0; page < links.pages; page++) {
            graph.addNode(pages[page] = model.factory().newNode(Integer.toString(page)));
        }
        for (int at = 0; at < links.sources.length; at++) {
            graph.addEdge(model.factory().newEdge(pages[links.sources[at]], pages[links.targets[at]], true));
        }
        var ranks = new PageRank();
        if (links.given("directed", 0) == 1) {
            ranks.setDirected(true);
        }
        if (links.given("tolerance", 0) > 0) {
            ranks.setEpsilon(links.given("tolerance", 0));
        }
        ranks.execute(model);
        links.write(page -> (Double) pages[page].getAttribute(PageRank.PAGERANK));
    }
}
