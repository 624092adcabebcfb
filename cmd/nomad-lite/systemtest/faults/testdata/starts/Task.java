import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

/** The task of the driver java: it records its start and its end, as the script of the other tasks does. */
class Task {
    public static void main(String[] args) throws Exception {
        int index = Integer.parseInt(System.getenv("NOMAD_ALLOC_INDEX"));
        int shift = Integer.parseInt(System.getenv("SHIFT"));
        record("start\n");
        Thread.sleep((index + shift) % 5 * 100);
        record("end\n");
        System.exit((index + shift) % 7);
    }

    static void record(String line) throws Exception {
        Path record = Path.of(System.getenv("NOMAD_ALLOC_DIR"), "data", "record");
        Files.writeString(record, line, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    }
}
