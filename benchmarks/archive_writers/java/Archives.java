import java.io.*;
import java.net.*;
import java.nio.channels.*;
import java.nio.file.*;
import java.text.SimpleDateFormat;
import java.time.*;
import java.util.*;
import java.util.concurrent.atomic.AtomicInteger;
import org.json.*;

/**
 * Writes planned archives, and lists archives, by the libraries of the field.
 *
 *   Archives jwat|jwat-arc1|jwat-arc2|jwarc|jwarc-zstd|heritrix|heritrix-arc PLANS OUT   each plan NAME.jsonl becomes OUT/NAME.*
 *   Archives wat IN OUT        each archive becomes a WAT file, by webarchive-commons
 *   Archives list IN...        each record as a line of JSON, by jwarc
 */
public class Archives {
  record Row(String kind, String url, String date, String name, String type, byte[] block, Map<String, String> fields) {
    static Row of(String line) {
      JSONObject from = new JSONObject(line);
      Map<String, String> fields = new LinkedHashMap<>();
      for (String key : from.getJSONObject("fields").keySet()) fields.put(key, from.getJSONObject("fields").getString(key));
      return new Row(from.getString("kind"), from.getString("url"), from.getString("date"), from.getString("name"),
          from.getString("content_type"), Base64.getDecoder().decode(from.getString("block")), fields);
    }
    String digits() { return date.replaceAll("[^0-9]", ""); }
  }

  public static void main(String[] args) throws Exception {
    if (args[0].equals("list")) {
      for (int i = 1; i < args.length; i++) list(Path.of(args[i]));
      return;
    }
    try (DirectoryStream<Path> files = Files.newDirectoryStream(Path.of(args[1]))) {
      for (Path file : files) {
        String name = file.getFileName().toString();
        if (args[0].equals("wat")) { wat(file, Path.of(args[2], name + ".wat.gz")); continue; }
        List<Row> rows = new ArrayList<>();
        for (String line : Files.readAllLines(file)) rows.add(Row.of(line));
        String out = args[2] + "/" + name.replace(".jsonl", "");
        boolean gzip = Math.abs(name.hashCode()) % 2 == 0;
        switch (args[0]) {
          case "jwat" -> jwat(rows, out + (gzip ? ".warc.gz" : ".warc"), gzip);
          case "jwat-arc1" -> jwatArc(rows, out + (gzip ? ".arc.gz" : ".arc"), gzip, 1);
          case "jwat-arc2" -> jwatArc(rows, out + (gzip ? ".arc.gz" : ".arc"), gzip, 2);
          case "jwarc" -> jwarc(rows, out + (gzip ? ".warc.gz" : ".warc"), gzip ? org.netpreserve.jwarc.WarcCompression.GZIP : org.netpreserve.jwarc.WarcCompression.NONE);
          case "heritrix" -> heritrix(rows, out + ".warc.gz");
          case "heritrix-arc" -> heritrixArc(rows, out + ".arc.gz");
          default -> throw new IllegalArgumentException(args[0]);
        }
      }
    }
  }

  static void jwat(List<Row> rows, String out, boolean gzip) throws Exception {
    try (OutputStream to = new BufferedOutputStream(new FileOutputStream(out))) {
      org.jwat.warc.WarcWriter writer = org.jwat.warc.WarcWriterFactory.getWriter(to, gzip);
      for (Row row : rows) {
        org.jwat.warc.WarcRecord record = org.jwat.warc.WarcRecord.createRecord(writer);
        record.header.addHeader("WARC-Type", row.kind);
        record.header.addHeader("WARC-Target-URI", row.url);
        record.header.addHeader("WARC-Date", row.date);
        record.header.addHeader("WARC-Record-ID", "<" + row.name + ">");
        for (var field : row.fields.entrySet()) record.header.addHeader(field.getKey(), field.getValue());
        record.header.addHeader("Content-Type", row.type);
        record.header.addHeader("Content-Length", (long) row.block.length, null);
        writer.writeHeader(record);
        writer.streamPayload(new ByteArrayInputStream(row.block));
        writer.closeRecord();
      }
      writer.close();
    }
  }

  static void jwatArc(List<Row> rows, String out, boolean gzip, int version) throws Exception {
    try (OutputStream to = new BufferedOutputStream(new FileOutputStream(out))) {
      org.jwat.arc.ArcWriter writer = org.jwat.arc.ArcWriterFactory.getWriter(to, gzip);
      org.jwat.arc.ArcVersionBlock first = org.jwat.arc.ArcVersionBlock.createRecord(writer);
      first.versionHeader = org.jwat.arc.ArcVersionHeader.create(
          version == 1 ? org.jwat.arc.ArcVersion.VERSION_1_1 : org.jwat.arc.ArcVersion.VERSION_2, "Example");
      first.versionHeader.rebuild();
      arcHeader(first.header, version, "filedesc://x.arc", "0.0.0.0", "20240518020122", "text/plain", first.versionHeader.getHeader().length);
      writer.writeHeader(first);
      writer.writePayload(first.versionHeader.getHeader());
      writer.closeRecord();
      for (Row row : rows) {
        org.jwat.arc.ArcRecord record = org.jwat.arc.ArcRecord.createRecord(writer);
        arcHeader(record.header, version, row.url, "192.0.2.1", row.digits(), "text/html", row.block.length);
        writer.writeHeader(record);
        writer.streamPayload(new ByteArrayInputStream(row.block));
        writer.closeRecord();
      }
      writer.close();
    }
  }

  static void arcHeader(org.jwat.arc.ArcHeader header, int version, String url, String ip, String date, String type, long length) {
    header.recordFieldVersion = version;
    header.urlStr = url; header.ipAddressStr = ip; header.archiveDateStr = date; header.contentTypeStr = type;
    header.archiveLengthStr = "" + length;
    if (version == 2) {
      header.resultCodeStr = "200"; header.checksumStr = "-"; header.locationStr = "-"; header.offsetStr = "0"; header.filenameStr = "x.arc";
    }
  }

  static void jwarc(List<Row> rows, String out, org.netpreserve.jwarc.WarcCompression packed) throws Exception {
    try (FileChannel to = FileChannel.open(Path.of(out), StandardOpenOption.CREATE, StandardOpenOption.WRITE);
         var writer = new org.netpreserve.jwarc.WarcWriter(to, packed)) {
      for (Row row : rows) {
        org.netpreserve.jwarc.Message.AbstractBuilder<?, ?> builder = switch (row.kind) {
          case "response" -> new org.netpreserve.jwarc.WarcResponse.Builder(row.url);
          case "request" -> new org.netpreserve.jwarc.WarcRequest.Builder(row.url);
          case "revisit" -> new org.netpreserve.jwarc.WarcRevisit.Builder(row.url, URI.create(row.fields.get("WARC-Profile")));
          case "resource" -> new org.netpreserve.jwarc.WarcResource.Builder(URI.create(row.url));
          case "conversion" -> new org.netpreserve.jwarc.WarcConversion.Builder();
          case "continuation" -> new org.netpreserve.jwarc.WarcContinuation.Builder();
          default -> throw new IllegalArgumentException(row.kind);
        };
        builder.setHeader("WARC-Target-URI", row.url);
        ((org.netpreserve.jwarc.WarcRecord.AbstractBuilder<?, ?>) builder).date(Instant.parse(row.date));
        ((org.netpreserve.jwarc.WarcRecord.AbstractBuilder<?, ?>) builder).recordId(URI.create(row.name));
        for (var field : row.fields.entrySet()) builder.setHeader(field.getKey(), field.getValue());
        var media = org.netpreserve.jwarc.MediaType.parse(row.type);
        var body = org.netpreserve.jwarc.Message.AbstractBuilder.class.getMethod("body", org.netpreserve.jwarc.MediaType.class, byte[].class);
        body.invoke(builder, media, row.block);
        writer.write((org.netpreserve.jwarc.WarcRecord) builder.build());
      }
    }
  }

  static void heritrix(List<Row> rows, String out) throws Exception {
    var settings = new org.archive.io.warc.WARCWriterPoolSettingsData("x", "x", 1L << 40, true, List.of(new File(".")), List.of("software: x"), new org.archive.uid.UUIDGenerator());
    var format = new SimpleDateFormat("yyyyMMddHHmmss");
    try (OutputStream to = new FileOutputStream(out)) {
      var writer = new org.archive.io.warc.WARCWriter(new AtomicInteger(), to, new File(out), settings);
      for (Row row : rows) {
        var info = new org.archive.io.warc.WARCRecordInfo();
        info.setType(org.archive.format.warc.WARCConstants.WARCRecordType.valueOf(row.kind));
        info.setUrl(row.url);
        info.setCreate14DigitDate(row.date);
        info.setMimetype(row.type);
        info.setRecordId(URI.create(row.name));
        var extra = new org.archive.util.anvl.ANVLRecord();
        for (var field : row.fields.entrySet()) extra.addLabelValue(field.getKey(), field.getValue());
        info.setExtraHeaders(extra);
        info.setContentStream(new ByteArrayInputStream(row.block));
        info.setContentLength(row.block.length);
        info.setEnforceLength(true);
        writer.writeRecord(info);
      }
      writer.close();
    }
  }

  static void heritrixArc(List<Row> rows, String out) throws Exception {
    var settings = new org.archive.io.arc.WriterPoolSettingsData("x", "x", 1L << 40, true, List.of(new File(".")), List.of());
    try (PrintStream to = new PrintStream(new FileOutputStream(out))) {
      var writer = new org.archive.io.arc.ARCWriter(new AtomicInteger(), to, new File(out), settings);
      for (Row row : rows) {
        long at = Instant.parse(row.date).toEpochMilli();
        writer.write(row.url, "text/html", "192.0.2.1", at, row.block.length, new ByteArrayInputStream(row.block));
      }
      writer.close();
    }
  }

  static void wat(Path in, Path out) throws Exception {
    try (OutputStream to = new BufferedOutputStream(new FileOutputStream(out.toFile()))) {
      var producer = new org.archive.extract.ExtractingResourceProducer(
          org.archive.extract.ProducerUtils.getProducer(in.toString()), new org.archive.extract.ExtractingResourceFactoryMapper());
      var output = new org.archive.extract.WATExtractorOutput(to, "x.wat");
      for (var next = producer.getNext(); next != null; next = producer.getNext()) {
        org.archive.util.StreamCopy.readToEOF(next.getInputStream());
        output.output(next);
      }
    }
  }

  static void list(Path in) throws Exception {
    JSONArray found = new JSONArray();
    String why = "";
    try (var reader = new org.netpreserve.jwarc.WarcReader(in)) {
      for (var record : reader) {
        String url = record instanceof org.netpreserve.jwarc.WarcTargetRecord target ? target.target() : "";
        String status = "";
        try {
          if (record instanceof org.netpreserve.jwarc.WarcResponse response && url.startsWith("http")) status = "" + response.http().status();
        } catch (Exception error) { status = "?"; }
        found.put(new JSONArray(List.of(record.type(), url, status)));
      }
    } catch (Exception error) { why = "" + error; }
    System.out.println(new JSONObject(Map.of("file", in.toString(), "records", found, "error", why)));
  }
}
