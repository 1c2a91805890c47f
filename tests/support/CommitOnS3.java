import cdc.ConditionalLogStore;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;

/** Writes a commit of 256 KiB to the path given by the log store for S3; the other arguments are names and values. */
public final class CommitOnS3 {
    public static void main(String[] arguments) throws Exception {
        var settings = new Configuration();
        for (int at = 1; at < arguments.length; at += 2) {
            settings.set(arguments[at], arguments[at + 1]);
        }
        var actions = List.of("x".repeat(1 << 18)).iterator();
        new ConditionalLogStore(settings).write(new Path(arguments[0]), actions, false, settings);
    }
}
