package opic.urlfrontier;

import static org.junit.jupiter.api.Assertions.assertEquals;

import com.google.protobuf.DescriptorProtos.DescriptorProto;
import com.google.protobuf.DescriptorProtos.EnumDescriptorProto;
import com.google.protobuf.DescriptorProtos.FieldDescriptorProto;
import com.google.protobuf.DescriptorProtos.FileDescriptorProto;
import com.google.protobuf.InvalidProtocolBufferException;
import crawlercommons.urlfrontier.Urlfrontier;
import io.grpc.reflection.v1alpha.ServerReflectionGrpc;
import io.grpc.reflection.v1alpha.ServerReflectionRequest;
import io.grpc.reflection.v1alpha.ServerReflectionResponse;
import io.grpc.stub.StreamObserver;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.DisplayName;
import org.junit.jupiter.api.Test;

@DisplayName("The interface that the service describes")
class DescriptorTest {

  @Test
  @DisplayName("has each call, message, field and enum value of the artifact, unchanged")
  void hasAllOfTheArtifact() throws Exception {
    Set<String> wanted = linesOf(Urlfrontier.getDescriptor().toProto());
    Set<String> missing = new TreeSet<>(wanted);
    missing.removeAll(linesOf(served()));
    assertEquals(Set.of(), missing);
    assertEquals(17, wanted.stream().filter(line -> line.startsWith("call ")).count());
    assertEquals(77, wanted.stream().filter(line -> line.startsWith("field ")).count());
  }

  /** The file of the service, as reflection tells it. */
  private static FileDescriptorProto served() throws Exception {
    CompletableFuture<ServerReflectionResponse> answer = new CompletableFuture<>();
    try (Client client = new Client()) {
      StreamObserver<ServerReflectionRequest> stream =
          ServerReflectionGrpc.newStub(client.channel)
              .serverReflectionInfo(
                  new StreamObserver<>() {
                    @Override
                    public void onNext(ServerReflectionResponse value) {
                      answer.complete(value);
                    }

                    @Override
                    public void onError(Throwable error) {
                      answer.completeExceptionally(error);
                    }

                    @Override
                    public void onCompleted() {}
                  });
      stream.onNext(
          ServerReflectionRequest.newBuilder()
              .setFileContainingSymbol("urlfrontier.URLFrontier")
              .build());
      stream.onCompleted();
      return parsed(answer.get(30, TimeUnit.SECONDS));
    }
  }

  private static FileDescriptorProto parsed(ServerReflectionResponse answer)
      throws InvalidProtocolBufferException {
    return FileDescriptorProto.parseFrom(
        answer.getFileDescriptorResponse().getFileDescriptorProto(0));
  }

  /** One line for each thing that a client relies on. */
  private static Set<String> linesOf(FileDescriptorProto file) {
    Set<String> lines = new TreeSet<>();
    String scope = "." + file.getPackage();
    file.getServiceList()
        .forEach(
            service ->
                service
                    .getMethodList()
                    .forEach(
                        call ->
                            lines.add(
                                "call %s.%s.%s(%s%s) %s%s"
                                    .formatted(
                                        scope,
                                        service.getName(),
                                        call.getName(),
                                        call.getClientStreaming() ? "stream " : "",
                                        call.getInputType(),
                                        call.getServerStreaming() ? "stream " : "",
                                        call.getOutputType()))));
    file.getEnumTypeList().forEach(type -> add(lines, scope, type));
    file.getMessageTypeList().forEach(type -> add(lines, scope, type));
    return lines;
  }

  private static void add(Set<String> lines, String scope, DescriptorProto message) {
    String name = scope + "." + message.getName();
    lines.add("message %s map %s".formatted(name, message.getOptions().getMapEntry()));
    message.getFieldList().forEach(field -> lines.add(lineOf(name, message, field)));
    message.getEnumTypeList().forEach(type -> add(lines, name, type));
    message.getNestedTypeList().forEach(type -> add(lines, name, type));
  }

  private static void add(Set<String> lines, String scope, EnumDescriptorProto type) {
    type.getValueList()
        .forEach(
            value ->
                lines.add(
                    "value %s.%s.%s = %d"
                        .formatted(scope, type.getName(), value.getName(), value.getNumber())));
  }

  private static String lineOf(String scope, DescriptorProto message, FieldDescriptorProto field) {
    return "field %s.%s = %d %s %s%s oneof %s optional %s"
        .formatted(
            scope,
            field.getName(),
            field.getNumber(),
            field.getLabel(),
            field.getType(),
            field.getTypeName(),
            field.hasOneofIndex() ? message.getOneofDecl(field.getOneofIndex()).getName() : "none",
            field.getProto3Optional());
  }
}
