package cdc;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.ByteArrayOutputStream;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.io.InterruptedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Arrays;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Options.CreateFileOptionKeys;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.s3a.AWSServiceIOException;

/**
 * Delta's log on S3 for any number of drivers: of all writers of one version S3 lets one win.
 *
 * <p>A writer that is refused, or gets no answer, reads back what is there: its own bytes mean that it won and the
 * answer was lost. A commit's bytes hold an id of the transaction, so no other writer has the same.
 */
public final class ConditionalLogStore extends HadoopFileSystemLogStore {
    private static final int STILL_UNDECIDED = 409;
    private static final int ATTEMPTS = 6;
    private static final long FIRST_PAUSE_MILLISECONDS = 50;

    public ConditionalLogStore(Configuration configuration) {
        super(configuration);
    }

    /** Throws FileAlreadyExistsException, on which Delta tries the next version, when another writer has this one. */
    @Override
    public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration configuration)
            throws IOException {
        FileSystem files = path.getFileSystem(configuration);
        byte[] content = bytesOf(actions);
        if (overwrite) {
            put(files, path, content, false);
            return;
        }
        for (int attempt = 1; true; attempt++) {
            try {
                put(files, path, content, true);
                return;
            } catch (IOException refused) {
                byte[] found = readBack(files, path, refused);
                if (Arrays.equals(found, content)) {
                    return;
                }
                if (found != null) {
                    throw (IOException) new FileAlreadyExistsException(path.toString()).initCause(refused);
                }
                if (attempt == ATTEMPTS || !isUndecided(refused)) {
                    throw refused;
                }
                pause(FIRST_PAUSE_MILLISECONDS << attempt);
            }
        }
    }

    /** An object is there whole or not at all. */
    @Override
    public Boolean isPartialWriteVisible(Path path, Configuration configuration) {
        return false;
    }

    private static void put(FileSystem files, Path path, byte[] content, boolean ifAbsent) throws IOException {
        var builder = files.createFile(path).recursive().overwrite(true);
        if (ifAbsent) {
            builder.must(CreateFileOptionKeys.FS_OPTION_CREATE_CONDITIONAL_OVERWRITE, true);
        }
        try (FSDataOutputStream out = builder.build()) {
            try {
                out.write(content);
            } catch (Throwable unfinished) {
                out.abort(); // S3A's close() would put what was written so far
                throw unfinished;
            }
        }
    }

    /** Null when nothing is there. */
    private static byte[] readBack(FileSystem files, Path path, IOException refused) throws IOException {
        try (InputStream in = files.open(path)) {
            return in.readAllBytes();
        } catch (FileNotFoundException absent) {
            return null;
        } catch (IOException unreadable) {
            refused.addSuppressed(unreadable);
            throw refused;
        }
    }

    private static boolean isUndecided(IOException refused) {
        return refused instanceof AWSServiceIOException answered && answered.statusCode() == STILL_UNDECIDED;
    }

    private static void pause(long milliseconds) throws InterruptedIOException {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException interrupted) {
            throw (InterruptedIOException) new InterruptedIOException("while a commit waited").initCause(interrupted);
        }
    }

    private static byte[] bytesOf(Iterator<String> actions) {
        var content = new ByteArrayOutputStream();
        while (actions.hasNext()) {
            content.writeBytes((actions.next() + "\n").getBytes(StandardCharsets.UTF_8));
        }
        return content.toByteArray();
    }
}
