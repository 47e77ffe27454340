import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.function.IntToDoubleFunction;

/** The graph of a file, and the ranks of another one; see pypi.py. Parameters are given as NAME=NUMBER. */
final class Links {
    final int pages;
    final int[] sources;
    final int[] targets;
    private final String[] arguments;

    Links(String[] arguments) throws IOException {
        this.arguments = arguments;
        ByteBuffer bytes = ByteBuffer.wrap(Files.readAllBytes(Path.of(arguments[0]))).order(ByteOrder.LITTLE_ENDIAN);
        pages = bytes.getInt();
        int links = bytes.getInt();
        sources = new int[links];
        targets = new int[links];
        for (int at = 0; at < links; at++) {
            sources[at] = bytes.getInt();
            targets[at] = bytes.getInt();
        }
    }

    double given(String name, double otherwise) {
        for (String argument : arguments) {
            if (argument.startsWith(name + "=")) {
                return Double.parseDouble(argument.substring(name.length() + 1));
            }
        }
        return otherwise;
    }

    void write(IntToDoubleFunction rank) throws IOException {
        ByteBuffer bytes = ByteBuffer.allocate(8 * pages).order(ByteOrder.LITTLE_ENDIAN);
        for (int page = 0; page < pages; page++) {
            bytes.putDouble(rank.applyAsDouble(page));
        }
        Files.write(Path.of(arguments[1]), bytes.array());
    }
}
