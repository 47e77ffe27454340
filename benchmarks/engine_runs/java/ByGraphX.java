import java.util.ArrayList;
import java.util.HashMap;
import org.apache.spark.SparkConf;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.graphx.Edge;
import org.apache.spark.graphx.Graph;
import org.apache.spark.graphx.lib.PageRank;
import org.apache.spark.storage.StorageLevel;
import scala.Tuple2;
import scala.reflect.ClassTag;
import scala.reflect.ClassTag$;

final class ByGraphX {
    public static void main(String[] arguments) throws Exception {
        Links links = new Links(arguments);
        var settings = new SparkConf().setMaster("local[2]").setAppName("ranks").set("spark.ui.enabled", "false");
        try (var context = new JavaSparkContext(settings)) {
            ClassTag<Object> any = ClassTag$.MODULE$.apply(Object.class);
            StorageLevel level = StorageLevel.MEMORY_ONLY();
            var pages = new ArrayList<Tuple2<Object, Object>>();
            for (long page = 0; page < links.pages; page++) {
                pages.add(new Tuple2<>(page, 1));
            }
            var edges = new ArrayList<Edge<Object>>();
            for (int at = 0; at < links.sources.length; at++) {
                edges.add(new Edge<>(links.sources[at], links.targets[at], 1));
            }
            var edgeRows = context.parallelize(edges, 4).rdd();
            Graph<Object, Object> graph = links.given("links_alone", 0) == 1
                ? Graph.fromEdges(edgeRows, 1, level, level, any, any)
                : Graph.apply(context.parallelize(pages, 4).rdd(), edgeRows, null, level, level, any, any);
            int steps = (int) links.given("steps", 0);
            Graph<Object, Object> found = steps > 0
                ? PageRank.run(graph, steps, 0.15, any, any)
                : PageRank.runUntilConvergence(graph, links.given("tolerance", 0.01), 0.15, any, any);
            var ranks = new HashMap<Long, Double>();
            for (Tuple2<Object, Object> page : found.vertices().toJavaRDD().collect()) {
                ranks.put((Long) page._1(), (Double) page._2());
            }
            links.write(page -> ranks.getOrDefault((long) page, Double.NaN));
        }
    }
}
