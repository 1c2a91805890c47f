package cdc;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.util.Iterator;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;

/**
 * Delta's log in a folder for any number of processes: of all writers of one version the file system lets one win.
 *
 * <p>Delta's own looks whether the version is there and renames over it then, which is safe inside one process. Here the
 * last act is a hard link to a file that is complete and synced, as it is in the pipeline's own commits; then the folder
 * is synced.
 */
public final class LinkingLogStore extends HadoopFileSystemLogStore {
    public LinkingLogStore(Configuration configuration) {
        super(configuration);
    }

    /** Throws FileAlreadyExistsException, on which Delta tries the next version, when another writer has this one. */
    @Override
    public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration configuration)
            throws IOException {
        java.nio.file.Path target = java.nio.file.Path.of(path.toUri().getPath());
        java.nio.file.Path pending = beside(target, "." + UUID.randomUUID() + ".tmp");
        try {
            writeAndSync(pending, actions);
            if (overwrite) {
                Files.deleteIfExists(beside(target, ".crc"));
                Files.move(pending, target, StandardCopyOption.ATOMIC_MOVE);
            } else {
                Files.createLink(target, pending);
            }
            sync(target.getParent(), StandardOpenOption.READ);
        } finally {
            Files.deleteIfExists(pending);
        }
    }

    /** Other files of the log, such as checkpoints, are written by Spark itself and grow where everybody sees them. */
    @Override
    public Boolean isPartialWriteVisible(Path path, Configuration configuration) {
        return true;
    }

    /** A hidden file by the same name; `.crc` is the checksum that Hadoop keeps of a file that Delta's own wrote. */
    private static java.nio.file.Path beside(java.nio.file.Path target, String ending) {
        return target.resolveSibling("." + target.getFileName() + ending);
    }

    private static void writeAndSync(java.nio.file.Path pending, Iterator<String> actions) throws IOException {
        Files.write(
                pending, (Iterable<String>) () -> actions, StandardCharsets.UTF_8, StandardOpenOption.CREATE_NEW);
        sync(pending, StandardOpenOption.WRITE);
    }

    private static void sync(java.nio.file.Path written, StandardOpenOption option) throws IOException {
        try (FileChannel file = FileChannel.open(written, option)) {
            file.force(true);
        }
    }
}
