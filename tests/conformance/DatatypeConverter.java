package javax.xml.bind;

/**
 * What AggregatorUtil tells a fault with; no Java has had it since 11, and without it the KCL up to
 * 3.2 fails with NoClassDefFoundError where it means to go on.
 */
public final class DatatypeConverter {
    private DatatypeConverter() {}

    public static String printBase64Binary(byte[] data) {
        return "";
    }
}
