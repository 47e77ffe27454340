package opic.urlfrontier;

import static org.junit.jupiter.api.Assertions.assertTrue;

import crawlercommons.urlfrontier.CrawlID;
import crawlercommons.urlfrontier.URLFrontierGrpc;
import crawlercommons.urlfrontier.URLFrontierGrpc.URLFrontierBlockingStub;
import crawlercommons.urlfrontier.Urlfrontier.AckMessage;
import crawlercommons.urlfrontier.Urlfrontier.AckMessage.Status;
import crawlercommons.urlfrontier.Urlfrontier.DeleteCrawlMessage;
import crawlercommons.urlfrontier.Urlfrontier.DiscoveredURLItem;
import crawlercommons.urlfrontier.Urlfrontier.GetParams;
import crawlercommons.urlfrontier.Urlfrontier.KnownURLItem;
import crawlercommons.urlfrontier.Urlfrontier.Pagination;
import crawlercommons.urlfrontier.Urlfrontier.QueueList;
import crawlercommons.urlfrontier.Urlfrontier.QueueWithinCrawlParams;
import crawlercommons.urlfrontier.Urlfrontier.Stats;
import crawlercommons.urlfrontier.Urlfrontier.StringList;
import crawlercommons.urlfrontier.Urlfrontier.URLInfo;
import crawlercommons.urlfrontier.Urlfrontier.URLItem;
import crawlercommons.urlfrontier.Urlfrontier.URLStatusRequest;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.StreamObserver;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import org.junit.jupiter.api.Assertions;
import org.junit.jupiter.api.function.Executable;

/** A connection to the service whose address the property urlfrontier.address tells. */
final class Client implements AutoCloseable {

  private static final int WAIT_SECONDS = 30;

  final ManagedChannel channel =
      ManagedChannelBuilder.forTarget(System.getProperty("urlfrontier.address", "127.0.0.1:7071"))
          .usePlaintext()
          .build();
  final URLFrontierBlockingStub calls = URLFrontierGrpc.newBlockingStub(channel);

  @Override
  public void close() {
    channel.shutdownNow();
  }

  /** Forgets all pages of the crawl. */
  void clear() {
    calls.deleteCrawl(DeleteCrawlMessage.getDefaultInstance());
  }

  /** Puts items, waits until the service ends the stream, and returns its answers. */
  List<AckMessage> acks(List<URLItem> items) throws InterruptedException {
    List<AckMessage> acks = Collections.synchronizedList(new ArrayList<>());
    List<Throwable> errors = Collections.synchronizedList(new ArrayList<>());
    CountDownLatch done = new CountDownLatch(1);
    StreamObserver<URLItem> stream =
        URLFrontierGrpc.newStub(channel)
            .putURLs(
                new StreamObserver<>() {
                  @Override
                  public void onNext(AckMessage ack) {
                    acks.add(ack);
                  }

                  @Override
                  public void onError(Throwable error) {
                    errors.add(error);
                    done.countDown();
                  }

                  @Override
                  public void onCompleted() {
                    done.countDown();
                  }
                });
    items.forEach(stream::onNext);
    stream.onCompleted();
    assertTrue(done.await(WAIT_SECONDS, TimeUnit.SECONDS), "the stream of answers does not end");
    Assertions.assertEquals(List.of(), errors);
    return acks;
  }

  /** Puts items one stream each, so that they take effect in this order; returns the statuses. */
  List<Status> put(URLItem... items) throws InterruptedException {
    List<Status> statuses = new ArrayList<>();
    for (URLItem item : items) {
      acks(List.of(item)).forEach(ack -> statuses.add(ack.getStatus()));
    }
    return statuses;
  }

  /** Takes pages of the default crawl to fetch; an empty key means of all queues. */
  List<String> take(String key, int urls, int seconds) {
    GetParams params =
        GetParams.newBuilder()
            .setKey(key)
            .setMaxUrlsPerQueue(urls)
            .setDelayRequestable(seconds)
            .setCrawlID(CrawlID.DEFAULT)
            .build();
    List<String> found = new ArrayList<>();
    calls.getURLs(params).forEachRemaining(info -> found.add(info.getUrl()));
    return found;
  }

  Stats stats(String key) {
    return calls.getStats(QueueWithinCrawlParams.newBuilder().setKey(key).build());
  }

  URLItem status(String url) {
    return calls.getURLStatus(URLStatusRequest.newBuilder().setUrl(url).build());
  }

  QueueList queues(int start, int size, boolean includeInactive) {
    return calls.listQueues(
        Pagination.newBuilder()
            .setStart(start)
            .setSize(size)
            .setIncludeInactive(includeInactive)
            .setCrawlID(CrawlID.DEFAULT)
            .build());
  }

  static URLInfo info(String url) {
    return URLInfo.newBuilder().setUrl(url).build();
  }

  static URLInfo info(String url, String name, String value) {
    return info(url).toBuilder()
        .putMetadata(name, StringList.newBuilder().addValues(value).build())
        .build();
  }

  static URLItem discovered(URLInfo info) {
    return URLItem.newBuilder().setDiscovered(DiscoveredURLItem.newBuilder().setInfo(info)).build();
  }

  static URLItem discovered(String url) {
    return discovered(info(url));
  }

  static URLItem known(URLInfo info, long date) {
    return URLItem.newBuilder()
        .setKnown(KnownURLItem.newBuilder().setInfo(info).setRefetchableFromDate(date))
        .build();
  }

  static long now() {
    return Instant.now().getEpochSecond();
  }

  /** Asserts that a call is answered with a code. */
  static void refused(io.grpc.Status.Code code, Executable call) {
    StatusRuntimeException error = Assertions.assertThrows(StatusRuntimeException.class, call);
    Assertions.assertEquals(code, error.getStatus().getCode());
  }

  /** Waits until something holds. */
  static void await(BooleanSupplier holds) throws InterruptedException {
    long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(WAIT_SECONDS);
    while (!holds.getAsBoolean()) {
      assertTrue(System.nanoTime() < end, "not within " + WAIT_SECONDS + " s");
      Thread.sleep(20);
    }
  }
}
