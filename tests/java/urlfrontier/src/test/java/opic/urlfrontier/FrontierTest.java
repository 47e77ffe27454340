package opic.urlfrontier;

import static opic.urlfrontier.Client.await;
import static opic.urlfrontier.Client.discovered;
import static opic.urlfrontier.Client.info;
import static opic.urlfrontier.Client.known;
import static opic.urlfrontier.Client.now;
import static opic.urlfrontier.Client.refused;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import crawlercommons.urlfrontier.CrawlID;
import crawlercommons.urlfrontier.Urlfrontier.AckMessage;
import crawlercommons.urlfrontier.Urlfrontier.AckMessage.Status;
import crawlercommons.urlfrontier.Urlfrontier.Active;
import crawlercommons.urlfrontier.Urlfrontier.AnyCrawlID;
import crawlercommons.urlfrontier.Urlfrontier.BlockQueueParams;
import crawlercommons.urlfrontier.Urlfrontier.CountUrlParams;
import crawlercommons.urlfrontier.Urlfrontier.DeleteCrawlMessage;
import crawlercommons.urlfrontier.Urlfrontier.Empty;
import crawlercommons.urlfrontier.Urlfrontier.GetParams;
import crawlercommons.urlfrontier.Urlfrontier.ListUrlParams;
import crawlercommons.urlfrontier.Urlfrontier.Local;
import crawlercommons.urlfrontier.Urlfrontier.LogLevelParams;
import crawlercommons.urlfrontier.Urlfrontier.QueueDelayParams;
import crawlercommons.urlfrontier.Urlfrontier.QueueList;
import crawlercommons.urlfrontier.Urlfrontier.QueueWithinCrawlParams;
import crawlercommons.urlfrontier.Urlfrontier.Stats;
import crawlercommons.urlfrontier.Urlfrontier.URLInfo;
import crawlercommons.urlfrontier.Urlfrontier.URLItem;
import io.grpc.Status.Code;
import java.net.URL;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.function.Function;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.DisplayName;
import org.junit.jupiter.api.Test;

/**
 * What the tests of URLFrontier itself assert, asked of this service. Where it answers in another
 * way on purpose, a comment says so.
 */
@DisplayName("URLFrontier's own client")
class FrontierTest {

  private static final String SITE = "www.mysite.com";
  private static final String DISCOVERED = "https://www.mysite.com/discovered";
  private static final String COMPLETED = "https://www.mysite.com/completed";
  private static final String SCHEDULED = "https://www.mysite.com/knowntorefetch";
  private static final String SECOND = "https://another.mysite.com/secondqueue";
  private static final String THIRD = "https://www.delete.me/tobedeleted";

  private Client client;

  @BeforeEach
  void connect() {
    client = new Client();
    client.clear();
  }

  @AfterEach
  void disconnect() {
    client.close();
  }

  // What URLFrontierServiceTest asserts.

  @Test
  @DisplayName("is not handed a known page without a refetch date")
  void neverRefetched() throws Exception {
    URLInfo info = info("http://key1.com/").toBuilder().setKey("key1.com").build();
    assertEquals(List.of(Status.OK), client.put(known(info, 0)));
    assertEquals(List.of(), client.take("key1.com", 1, 2));
  }

  @Test
  @DisplayName("is handed all pages whose refetch date is past, and no other")
  void onlyPastDates() throws Exception {
    // URLFrontier hands out the one with the earlier date first, this service the most important.
    URLItem[] items = {
      known(info("http://key1.com/later"), now()),
      known(info("http://key1.com/sooner"), now() - 10_000),
      known(info("http://key1.com/tomorrow"), now() + 86_400)
    };
    assertEquals(List.of(Status.OK, Status.OK, Status.OK), client.put(items));
    assertEquals(
        Set.of("http://key1.com/later", "http://key1.com/sooner"),
        Set.copyOf(client.take("key1.com", 2, 30)));
  }

  @Test
  @DisplayName("has one page of two equal items, which is leased for the time it asks for")
  void leases() throws Exception {
    URLInfo info = info("http://key1.com/").toBuilder().setKey("key1.com").build();
    assertEquals(2, client.acks(List.of(discovered(info), discovered(info))).size());
    assertEquals(List.of("key1.com"), client.queues(0, 0, false).getValuesList());
    assertEquals(List.of("http://key1.com/"), client.take("key1.com", 1, 2));
    assertEquals(1, client.stats("key1.com").getNumberOfQueues());
    assertEquals(1, client.stats("key1.com").getInProcess());
    assertEquals(List.of(), client.take("key1.com", 1, 2));
    await(() -> client.stats("key1.com").getInProcess() == 0);
    assertEquals(1, client.stats("key1.com").getNumberOfQueues());
    assertEquals(1, deleteQueue("key1.com"));
    assertEquals(0, client.stats("key1.com").getNumberOfQueues());
  }

  @Test
  @DisplayName("finds a page without a key in the queue of its host")
  void queueNames() throws Exception {
    client.put(discovered("http://gac.icann.org?language_id=9"));
    assertEquals(1, client.stats("gac.icann.org").getSize());
    assertEquals(1, deleteQueue("gac.icann.org"));
  }

  @Test
  @DisplayName("reaches a crawl by its name, the first one as DEFAULT or without a name, and makes others")
  void crawlIds() throws Exception {
    // URLFrontier makes any number of crawls. This service was started for two.
    String name = client.calls.listCrawls(Local.getDefaultInstance()).getValues(0);
    assertEquals("default", name);
    String url = "http://urlfrontier.net/";
    Function<String, URLItem> of =
        crawl -> discovered(info(url).toBuilder().setCrawlID(crawl).build());
    assertEquals(List.of(Status.OK), client.put(of.apply("BESPOKE")));
    assertEquals(List.of(Status.FAIL), client.put(of.apply("ANOTHER")));
    assertEquals(
        List.of(name, "BESPOKE"),
        client.calls.listCrawls(Local.getDefaultInstance()).getValuesList());
    assertEquals(
        List.of(Status.OK, Status.OK, Status.OK),
        client.put(of.apply(""), of.apply(CrawlID.DEFAULT), of.apply(name)));
    for (String crawl : List.of("", CrawlID.DEFAULT, name, "BESPOKE")) {
      Stats stats =
          client.calls.getStats(QueueWithinCrawlParams.newBuilder().setCrawlID(crawl).build());
      assertEquals(1, stats.getSize());
      assertEquals(1, stats.getNumberOfQueues());
      assertEquals(crawl.isEmpty() ? name : crawl, stats.getCrawlID());
    }
    refused(
        Code.INVALID_ARGUMENT,
        () ->
            client.calls.getStats(
                QueueWithinCrawlParams.newBuilder().setCrawlID("ANOTHER").build()));
    for (String crawl : List.of("BESPOKE", "ANOTHER")) {
      DeleteCrawlMessage message = DeleteCrawlMessage.newBuilder().setValue(crawl).build();
      assertEquals(
          crawl.equals("BESPOKE") ? 1 : 0, client.calls.deleteCrawl(message).getValue());
    }
    assertEquals(1, client.stats("").getSize());
    client.clear();
    assertEquals(0, client.stats("").getSize());
  }

  // What MemoryFrontierServiceTest asserts. A queue is a host there too, but for its keys of any
  // text: here such an item is skipped. The version of this artifact has no creation dates.

  @Test
  @DisplayName("learns what is known of a page")
  void statusOfPages() throws Exception {
    putSite();
    // URLFrontier answers with a Known item here, whose date is that of its discovery.
    assertEquals("md1", metadata(client.status(DISCOVERED).getDiscovered().getInfo(), "meta1"));
    assertTrue(client.status(COMPLETED).hasKnown());
    assertEquals(0, client.status(COMPLETED).getKnown().getRefetchableFromDate());
    assertTrue(client.status(SCHEDULED).getKnown().getRefetchableFromDate() > now());
    assertEquals("md3", metadata(client.status(SCHEDULED).getKnown().getInfo(), "meta3"));
    refused(Code.NOT_FOUND, () -> client.status("https://www.example3.com"));
  }

  @Test
  @DisplayName("lists and counts pages, by queue, by text and from a place on")
  void listsPages() throws Exception {
    putSite();
    ListUrlParams all = ListUrlParams.newBuilder().setSize(100).build();
    assertEquals(
        Set.of(DISCOVERED, COMPLETED, SCHEDULED, SECOND, THIRD),
        list(all).stream().map(URLItem::getID).collect(Collectors.toSet()));
    assertEquals(1, list(all.toBuilder().setKey("another.mysite.com").build()).size());
    ListUrlParams upper = all.toBuilder().setFilter("COMPLETED").build();
    assertEquals(1, list(upper.toBuilder().setIgnoreCase(true).build()).size());
    assertEquals(0, list(upper.toBuilder().setIgnoreCase(false).build()).size());
    assertEquals(2, list(all.toBuilder().setStart(3).build()).size());
    assertEquals(2, list(all.toBuilder().setSize(2).build()).size());
    assertEquals(5, count(CountUrlParams.getDefaultInstance()));
    assertEquals(3, count(CountUrlParams.newBuilder().setKey(SITE).build()));
    assertEquals(1, deleteQueue("www.delete.me"));
    assertEquals(4, count(CountUrlParams.getDefaultInstance()));
    Stats stats = client.stats("");
    assertEquals(2, stats.getNumberOfQueues());
    assertEquals(3, stats.getSize());
    assertEquals(1, stats.getCountsOrThrow("completed"));
  }

  @Test
  @DisplayName("does not bring a completed page back by discovering it again")
  void completedStaysSo() throws Exception {
    putSite();
    // URLFrontier skips the item. This service takes it, since it may be a link.
    assertEquals(List.of(Status.OK), client.put(discovered(info(COMPLETED, "meta1", "md2"))));
    assertEquals(0, client.status(COMPLETED).getKnown().getRefetchableFromDate());
    assertTrue(client.status(COMPLETED).hasKnown());
    assertFalse(client.take(SITE, 100, 30).contains(COMPLETED));
  }

  @Test
  @DisplayName("has an answer for each of many items, by its ID or else its URL")
  void acksOfManyItems() throws Exception {
    List<URLItem> items = new ArrayList<>();
    for (int i = 0; i < 2_000; i++) {
      URLItem item =
          known(info("https://h" + i % 50 + ".example.com/" + i), now() + 3_600);
      items.add(i % 2 == 0 ? item : item.toBuilder().setID("item " + i).build());
    }
    List<AckMessage> acks = client.acks(items);
    assertEquals(items.size(), acks.size());
    assertEquals(
        items.stream()
            .map(item -> item.getID().isEmpty() ? item.getKnown().getInfo().getUrl() : item.getID())
            .collect(Collectors.toSet()),
        acks.stream().map(AckMessage::getID).collect(Collectors.toSet()));
    assertTrue(acks.stream().allMatch(ack -> ack.getStatus() == Status.OK));
    assertEquals(items.size(), count(CountUrlParams.getDefaultInstance()));
  }

  @Test
  @DisplayName("loses no other item with one that cannot be taken")
  void badItems() throws Exception {
    URLInfo foreign = info("https://a.example.com/").toBuilder().setKey("queue").build();
    assertEquals(
        List.of(Status.SKIPPED, Status.SKIPPED, Status.SKIPPED, Status.OK),
        client.put(
            discovered(""),
            URLItem.getDefaultInstance(),
            discovered(foreign),
            discovered("https://a.example.com/")));
    assertEquals(1, count(CountUrlParams.getDefaultInstance()));
  }

  @Test
  @DisplayName("may name the queue by the host that java.net.URL finds, as StormCrawler does")
  void hostsOfJava() throws Exception {
    List<URLItem> items = new ArrayList<>();
    for (String url :
        List.of(
            "HTTP://A.Example:80/",
            "http://user:secret@a.example/x",
            "http://a.example.:8080/",
            "http://b\u00fccher.example/",
            "http://B\u00dcCHER\uff0eexample?q",
            "http://exampl%65.org/",
            "http://a%2eb.example/",
            "http://[2001:DB8::0:1]:81/",
            "http://0x7f.1/",
            "http://2130706433/",
            "http:/a.example/",
            "http:a.example",
            "http:\\\\a.example/",
            "http://a.example\\b/",
            "http://a@b@c.example/",
            "http://a_b.example/")) {
      String host = new URL(url).getHost();
      String key = host == null ? "_DEFAULT_" : host;
      items.add(discovered(info(url).toBuilder().setKey(key).build()));
      assertEquals(List.of(Status.OK), client.put(items.get(items.size() - 1)), url + " " + key);
    }
  }

  // What ListQueuesPaginationTest asserts.

  @Test
  @DisplayName("sees each queue once while it pages through them, the inactive ones if it asks")
  void pagesThroughQueues() throws Exception {
    List<URLItem> items = new ArrayList<>();
    for (int i = 0; i < 6; i++) {
      URLInfo info = info("https://a" + i + ".example.com/");
      items.add(i % 2 == 0 ? discovered(info) : known(info, 0));
    }
    client.acks(items);
    assertEquals(hosts(0, 2, 4), pageThrough(1, false));
    assertEquals(hosts(0, 1, 2, 3, 4, 5), pageThrough(2, true));
    QueueList page = client.queues(4, 2, true);
    assertEquals(2, page.getValuesCount());
    assertEquals(2, page.getSize());
    assertEquals(4, page.getStart());
    assertEquals(CrawlID.DEFAULT, page.getCrawlID());
  }

  // What DumpURLsTest asserts.

  @Test
  @DisplayName("gets the same pages back when it lists all, deletes the crawl and puts the list")
  void dumpAndRestore() throws Exception {
    putSite();
    URLItem scheduled = client.status(SCHEDULED);
    List<URLItem> dump = list(ListUrlParams.newBuilder().setSize(100).build());
    assertEquals(5, dump.size());
    client.clear();
    assertEquals(0, count(CountUrlParams.getDefaultInstance()));
    assertEquals(5, client.acks(dump).size());
    assertEquals(5, count(CountUrlParams.getDefaultInstance()));
    assertTrue(client.status(COMPLETED).hasKnown());
    assertEquals(0, client.status(COMPLETED).getKnown().getRefetchableFromDate());
    assertEquals(scheduled.getKnown(), client.status(SCHEDULED).getKnown());
    assertEquals("md1", metadata(client.status(DISCOVERED).getDiscovered().getInfo(), "meta1"));
  }

  // What GetURLsReservationTest asserts. A delay is that of a host here, and has no crawl.

  @Test
  @DisplayName("is handed a page once, however many ask at the same time")
  void concurrentRequests() throws Exception {
    List<String> urls =
        IntStream.range(0, 200).mapToObj(i -> "https://h" + i % 4 + ".example.com/" + i).toList();
    client.acks(urls.stream().map(Client::discovered).toList());
    List<CompletableFuture<List<String>>> calls =
        Stream.generate(() -> CompletableFuture.supplyAsync(() -> client.take("", 20, 60)))
            .limit(8)
            .toList();
    List<String> taken = new ArrayList<>();
    calls.forEach(call -> taken.addAll(call.join()));
    assertEquals(taken.size(), Set.copyOf(taken).size());
    while (taken.size() < urls.size()) {
      List<String> more = client.take("", 20, 60);
      assertFalse(more.isEmpty());
      taken.addAll(more);
    }
    assertEquals(Set.copyOf(urls), Set.copyOf(taken));
  }

  @Test
  @DisplayName("is handed one page of a queue while the delay of the queue lasts")
  void delayOfQueue() throws Exception {
    client.put(discovered("https://slow.example.com/a"), discovered("https://slow.example.com/b"));
    QueueDelayParams.Builder params = QueueDelayParams.newBuilder().setKey("slow.example.com");
    client.calls.setDelay(params.setDelayRequestable(300).build());
    assertEquals(1, client.take("slow.example.com", 1, 1).size());
    assertEquals(List.of(), client.take("slow.example.com", 1, 1));
    assertEquals(List.of(), client.take("", 1, 1));
  }

  @Test
  @DisplayName("is handed no page of a blocked queue, with the key or without")
  void blockedQueue() throws Exception {
    client.put(discovered("https://blocked.example.com/"), discovered("https://b.example.com/"));
    BlockQueueParams.Builder params = BlockQueueParams.newBuilder().setKey("blocked.example.com");
    client.calls.blockQueueUntil(params.setTime(now() + 3_600).build());
    assertEquals(List.of(), client.take("blocked.example.com", 1, 30));
    assertEquals(List.of("https://b.example.com/"), client.take("", 1, 30));
    client.calls.blockQueueUntil(params.setTime(0).build());
    assertEquals(
        List.of("https://blocked.example.com/"), client.take("blocked.example.com", 1, 30));
  }

  // Calls without an assertion of their own there.

  @Test
  @DisplayName("is handed pages of any crawl, or of one that it names, with key and metadata")
  void crawlOfRequest() throws Exception {
    client.put(discovered(info("https://crawl.example.com/", "depth", "1")));
    GetParams.Builder params = GetParams.newBuilder().setMaxQueues(1).setMaxUrlsPerQueue(1);
    assertFalse(client.calls.getURLs(params.setCrawlID("BESPOKE").build()).hasNext());
    params.setAnyCrawlID(AnyCrawlID.getDefaultInstance());
    URLInfo page = client.calls.getURLs(params.build()).next();
    assertEquals("https://crawl.example.com/", page.getUrl());
    assertEquals("crawl.example.com", page.getKey());
    assertEquals("1", metadata(page, "depth"));
  }

  @Test
  @DisplayName("is handed nothing while the service is not active")
  void inactive() throws Exception {
    client.put(discovered("https://active.example.com/"));
    client.calls.setActive(Active.newBuilder().setState(false).build());
    assertFalse(client.calls.getActive(Local.getDefaultInstance()).getState());
    assertEquals(List.of(), client.take("", 1, 30));
    client.calls.setActive(Active.newBuilder().setState(true).build());
    assertTrue(client.calls.getActive(Local.getDefaultInstance()).getState());
    assertEquals(List.of("https://active.example.com/"), client.take("", 1, 30));
  }

  @Test
  @DisplayName("finds one node, and may set its log level")
  void node() {
    assertEquals(1, client.calls.listNodes(Empty.getDefaultInstance()).getValuesCount());
    LogLevelParams.Builder params = LogLevelParams.newBuilder().setPackage("opic.urlfrontier");
    Empty answer = client.calls.setLogLevel(params.setLevel(LogLevelParams.Level.INFO).build());
    assertEquals(Empty.getDefaultInstance(), answer);
  }

  /** The pages that URLFrontier's tests begin with. */
  private void putSite() throws Exception {
    List<Status> statuses =
        client.put(
            discovered(info(DISCOVERED, "meta1", "md1")),
            discovered(info(COMPLETED, "meta1", "md2")),
            known(info(COMPLETED, "meta1", "md2"), 0),
            known(info(SCHEDULED, "meta3", "md3"), now() + 3_600),
            discovered(info(SECOND, "meta4", "md4")),
            known(info(THIRD), now() + 3_600));
    assertEquals(Set.of(Status.OK), Set.copyOf(statuses));
  }

  private List<URLItem> list(ListUrlParams params) {
    List<URLItem> items = new ArrayList<>();
    client.calls.listURLs(params).forEachRemaining(items::add);
    return items;
  }

  private long count(CountUrlParams params) {
    return client.calls.countURLs(params).getValue();
  }

  private long deleteQueue(String key) {
    return client.calls.deleteQueue(QueueWithinCrawlParams.newBuilder().setKey(key).build())
        .getValue();
  }

  private Set<String> pageThrough(int size, boolean includeInactive) {
    Set<String> seen = new TreeSet<>();
    QueueList page;
    for (int start = 0;
        (page = client.queues(start, size, includeInactive)).getValuesCount() > 0;
        start += page.getValuesCount()) {
      page.getValuesList().forEach(name -> assertTrue(seen.add(name), name + " comes twice"));
    }
    return seen;
  }

  private static Set<String> hosts(int... numbers) {
    return IntStream.of(numbers)
        .mapToObj(i -> "a" + i + ".example.com")
        .collect(Collectors.toCollection(TreeSet::new));
  }

  private static String metadata(URLInfo info, String name) {
    return info.getMetadataOrThrow(name).getValues(0);
  }
}
