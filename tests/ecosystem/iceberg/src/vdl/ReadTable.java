package vdl;

import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.BaseTable;
import org.apache.iceberg.StaticTableOperations;
import org.apache.iceberg.Table;
import org.apache.iceberg.data.IcebergGenerics;
import org.apache.iceberg.data.Record;
import org.apache.iceberg.hadoop.HadoopFileIO;
import org.apache.iceberg.io.CloseableIterable;

/**
 * The rows of a table as Iceberg's own reader sees them.
 *
 * ReadTable METADATA COLUMN... prints a line for each row, with a tab between two values.
 */
public final class ReadTable {
    public static void main(String[] args) throws Exception {
        HadoopFileIO io = new HadoopFileIO(new Configuration());
        Table table = new BaseTable(new StaticTableOperations(args[0], io), "t");
        try (CloseableIterable<Record> rows = IcebergGenerics.read(table).build()) {
            for (Record row : rows) {
                StringBuilder line = new StringBuilder();
                for (int n = 1; n < args.length; n++) {
                    line.append(n > 1 ? "\t" : "").append(row.getField(args[n]));
                }
                System.out.println(line);
            }
        }
    }
}
