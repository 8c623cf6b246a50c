package vdl;

import java.net.InetSocketAddress;
import java.util.HashMap;
import java.util.Map;
import org.apache.iceberg.jdbc.JdbcCatalog;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.servlet.ServletContextHandler;
import org.eclipse.jetty.servlet.ServletHolder;

/**
 * REST catalogs, as Iceberg's own RESTCatalogServer serves one, but on loopback only.
 *
 * CatalogServer PORT NAME=VALUE... [-- PORT NAME=VALUE...]. What is between two dashes is a catalog:
 * its port, and the settings of the JDBC catalog that is behind it. Ends when its standard input does.
 */
public final class CatalogServer {
    public static void main(String[] args) throws Exception {
        int from = 0;
        for (int end = 0; end <= args.length; end++) {
            if (end == args.length || args[end].equals("--")) {
                Map<String, String> settings = new HashMap<>();
                for (int n = from + 1; n < end; n++) {
                    String[] parts = args[n].split("=", 2);
                    settings.put(parts[0], parts[1]);
                }
                serve(Integer.parseInt(args[from]), settings);
                from = end + 1;
            }
        }
        while (System.in.read() >= 0) {
            continue;
        }
        System.exit(0);
    }

    private static void serve(int port, Map<String, String> settings) throws Exception {
        JdbcCatalog catalog = new JdbcCatalog();
        catalog.initialize("catalog" + port, settings);
        ServletContextHandler context = new ServletContextHandler();
        RESTCatalogServlet servlet = new RESTCatalogServlet(new RESTCatalogAdapter(catalog));
        context.addServlet(new ServletHolder(servlet), "/*");
        Server server = new Server(new InetSocketAddress("127.0.0.1", port));
        server.setHandler(context);
        server.start();
    }
}
